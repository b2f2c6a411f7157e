// Lists files recursively or by a pattern. The order is by name, so that the same inputs give the
// same dataset on every machine.
#include "runtime/data/InputFiles.h"

#include <algorithm>
#include <filesystem>
#include <glob.h>
#include <string_view>
#include <system_error>

#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

namespace fs = std::filesystem;

bool isHidden(const fs::path &path) { return path.filename().native().starts_with('.'); }

/// Adds the regular files below a folder, without hidden ones. Stops soon after the limit, so that
/// a wrong folder such as `/` is not listed to its end.
Status addFolder(const std::string &folder, std::vector<std::string> &files) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::error_code ignored; // a path that cannot be inspected is not a regular file
    if (isHidden(entry->path()))
      entry.disable_recursion_pending();
    else if (entry->is_symlink(ignored) && entry->is_regular_file(ignored))
      return makeStatus(report::DataRefused,
                        "'{}' is a link, and links in a folder of data are not followed; name the "
                        "file itself",
                        entry->path().string());
    else if (entry->is_regular_file(ignored))
      files.push_back(entry->path().string());
    if (files.size() > kInputFilesMax)
      return Status::ok(); // the caller reports the limit
  }
  if (error)
    return makeStatus(StatusCode::Io, "cannot list '{}': {}", folder, error.message());
  return Status::ok();
}

/// GLOB_ERR makes unreadable folders an error; otherwise their files would be missing without a
/// message.
Status addPattern(const std::string &pattern, std::vector<std::string> &files) {
  glob_t matches = {};
  int rc = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &matches);
  Status status;
  if (rc == GLOB_NOMATCH)
    status = makeStatus(report::DataNotFound, "no file matches '{}'", pattern);
  else if (rc != 0)
    status = makeStatus(StatusCode::Io, "cannot list the files that match '{}'", pattern);
  std::error_code ignored;
  for (size_t i = 0; status.isOk() && i < matches.gl_pathc; ++i)
    if (fs::is_regular_file(matches.gl_pathv[i], ignored))
      files.emplace_back(matches.gl_pathv[i]);
  ::globfree(&matches);
  if (status.isOk() && files.empty())
    status = makeStatus(report::DataNotFound, "only folders match '{}'", pattern);
  return status;
}

/// An input is a folder, a file or a pattern. A name with `*` that exists is a file.
Status addInput(const std::string &input, std::vector<std::string> &files) {
  std::error_code error;
  fs::file_status info = fs::status(input, error);
  if (fs::is_directory(info)) {
    RETURN_IF_ERROR(addFolder(input, files));
    if (files.empty())
      return makeStatus(report::DataNotFound, "the folder '{}' contains no files", input);
    return Status::ok();
  }
  if (fs::is_regular_file(info)) {
    files.push_back(input);
    return Status::ok();
  }
  if (fs::exists(info))
    return makeStatus(report::DataRefused, "'{}' is neither a file nor a folder", input);
  if (input.find_first_of("*?[") != std::string::npos)
    return addPattern(input, files);
  return makeStatus(report::DataNotFound, "there is no file or folder '{}'", input);
}

/// Refuses files that are certainly not text. From their bytes the model would only learn noise.
Status checkIsText(const std::string &file, PackedInputs packed) {
  bool isTaken = packed == PackedInputs::Taken && (file.ends_with(".gz") || file.ends_with(".zst"));
  for (std::string_view suffix : {".gz", ".bz2", ".xz", ".zst", ".zip"})
    if (file.ends_with(suffix) && !isTaken)
      return makeStatus(report::DataRefused, "'{}' is compressed; unpack it first", file);
  if (!file.ends_with(".bin") && !file.ends_with(".idx"))
    return Status::ok();
  std::string prefix = file.substr(0, file.size() - 4);
  std::error_code ignored;
  if (fs::exists(prefix + ".idx", ignored) && fs::exists(prefix + ".bin", ignored))
    return makeStatus(report::DataRefused,
                      "'{}' belongs to an indexed dataset, which is named by its prefix '{}'", file,
                      prefix);
  return Status::ok();
}

} // namespace

/// Sorts the files of each input, but keeps the inputs in the order in which the user gave them.
Result<std::vector<std::string>> expandInputs(std::span<const std::string> inputs,
                                              PackedInputs packed) {
  std::vector<std::string> all;
  for (const std::string &input : inputs) {
    std::vector<std::string> files;
    RETURN_IF_ERROR(addInput(input, files));
    if (all.size() + files.size() > kInputFilesMax)
      return makeStatus(StatusCode::Exhausted, "more than {} files, the limit, at '{}'",
                        kInputFilesMax, input);
    std::sort(files.begin(), files.end());
    for (std::string &file : files) {
      RETURN_IF_ERROR(checkIsText(file, packed));
      all.push_back(std::move(file));
    }
  }
  return all;
}

} // namespace shardc::data
