// The folders of a run's checkpoints: which are complete, which one is the newest, and which may be
// removed.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "runtime/base/Io.h"
#include "runtime/base/ParseNumber.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/ProcessBarrier.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr std::chrono::hours kMeetingEnds{1}; ///< much more than machines' clocks differ
constexpr const char *kLatestTrainState = "latest_train_state.pt"; ///< of Megatron-Bridge

/// The names in a folder, sorted; empty if the folder does not exist.
std::vector<std::string> namesIn(const std::string &root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// The X of a hidden name `.X<ending>`, such as `.X.old`, if X is the name of a checkpoint.
std::optional<std::string> unhidden(const std::string &name, std::string_view ending) {
  if (name.size() <= 1 + ending.size() || name[0] != '.' || !name.ends_with(ending))
    return std::nullopt;
  std::string inner = name.substr(1, name.size() - 1 - ending.size());
  return isCheckpointName(inner) ? std::optional(std::move(inner)) : std::nullopt;
}

/// Whether the path is an abandoned meeting folder. While a job uses such a folder, its ranks write
/// to it constantly. Other jobs meet in folders of their own while they wait for this lock.
bool isLeftBehind(const fs::path &path) {
  std::error_code error;
  fs::file_time_type last = fs::last_write_time(path, error);
  return isMeetingPlace(path.filename().string()) && !error &&
         fs::file_time_type::clock::now() - last > kMeetingEnds;
}

/// The checkpoint that the tracker file names: an iteration, or `release`, which is Megatron's word
/// for converted weights. Nothing if there is no tracker file.
Result<std::optional<SavedIteration>> trackedIteration(const std::string &root) {
  std::string path = fmt::format("{}/{}", root, kTrackerFile);
  Result<std::string> text = UntrustedFolder::readIn(root, kTrackerFile, /*bytesMax=*/4096);
  if (!text.isOk() && text.status().code() == StatusCode::NotFound)
    return std::optional<SavedIteration>();
  if (!text.isOk())
    return text.status();
  std::string_view word(*text);
  while (!word.empty() && (word.back() == '\n' || word.back() == ' ' || word.back() == '\r'))
    word.remove_suffix(1);
  SavedIteration saved;
  if (word == "release") {
    saved.folder = root + "/release";
  } else if (std::optional<int64_t> iteration = parseCount(word)) {
    saved = {*iteration, fmt::format("{}/iter_{:07}", root, *iteration)};
  } else {
    return makeStatus(report::CheckpointDamaged,
                      "'{}' contains '{}', which is neither an iteration nor 'release'", path,
                      word.substr(0, 40));
  }
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(root));
  Status status = in.folder(fs::path(saved.folder).filename()).status();
  if (status.code() == StatusCode::NotFound)
    return makeStatus(report::CheckpointNotFound,
                      "'{}' names iteration '{}', but '{}' does not exist", path, word,
                      saved.folder);
  RETURN_IF_ERROR(std::move(status));
  return std::optional(saved);
}

} // namespace

std::optional<int64_t> iterationOf(std::string_view name) {
  return name.starts_with("iter_") ? parseCount(name.substr(5)) : std::nullopt;
}

bool isCheckpointName(std::string_view name) { return name == "release" || iterationOf(name); }

Result<std::vector<SavedIteration>> listIterations(const std::string &root) {
  std::vector<SavedIteration> found;
  std::error_code error;
  for (const std::string &name : namesIn(root)) {
    std::optional<int64_t> iteration = iterationOf(name);
    std::string folder = root + "/" + name;
    if (iteration && !fs::is_symlink(folder, error) && fs::exists(folder + "/.metadata", error))
      found.push_back({*iteration, folder});
  }
  std::ranges::sort(found, {}, &SavedIteration::iteration);
  return found;
}

Result<std::optional<SavedIteration>> latestIteration(const std::string &root) {
  ASSIGN_OR_RETURN(std::optional<SavedIteration> tracked, trackedIteration(root));
  if (tracked)
    return tracked;
  ASSIGN_OR_RETURN(std::vector<SavedIteration> all, listIterations(root));
  return all.empty() ? std::optional<SavedIteration>() : std::optional(all.back());
}

Status recoverInterrupted(const std::string &root, const ReportSink &emit,
                          const Observers &observers) {
  std::error_code error;
  for (const std::string &name : namesIn(root)) {
    std::string path = root + "/" + name;
    // Accepts only file types that saves create, since a user's own files may have such endings,
    // too.
    fs::file_type type = fs::symlink_status(path, error).type();
    if (type == fs::file_type::regular &&
        (isTemporaryOf(name, kTrackerFile) || isTemporaryOf(name, kLatestTrainState)))
      RETURN_IF_ERROR(removeTree(observers, path));
    if (type != fs::file_type::directory)
      continue;
    if (unhidden(name, ".saving") || unhidden(name, ".removing") || isLeftBehind(path)) {
      RETURN_IF_ERROR(removeTree(observers, path));
      emit(makeReport(report::SaveCleared,
                      fmt::format("removed '{}', which an interrupted run left", path)));
    } else if (std::optional<std::string> folder = unhidden(name, ".old")) {
      bool isReplaced = fs::exists(root + "/" + *folder + "/.metadata", error);
      RETURN_IF_ERROR(isReplaced ? removeTree(observers, path)
                                 : renamePath(observers, path, root + "/" + *folder));
      emit(makeReport(
          report::SaveCleared,
          isReplaced ? fmt::format("removed '{}', which was replaced", path)
                     : fmt::format("put back '{}', whose replacement was interrupted", *folder)));
    }
  }
  return Status::ok();
}

Status removeOldIterations(const std::string &root, int keep, const Observers &observers,
                           int64_t retain) {
  ASSIGN_OR_RETURN(std::vector<SavedIteration> all, listIterations(root));
  ASSIGN_OR_RETURN(std::optional<SavedIteration> latest, latestIteration(root));
  size_t removable = all.size() - std::min(all.size(), static_cast<size_t>(std::max(keep, 1)));
  for (size_t i = 0; i < removable; ++i) {
    bool isRetained = retain > 0 && all[i].iteration % retain == 0;
    if (isRetained || (latest && all[i].folder == latest->folder))
      continue;
    // Renames the folder first, so that a partly removed folder is never mistaken for a checkpoint.
    std::string hidden =
        fmt::format("{}/.{}.removing", root, fs::path(all[i].folder).filename().string());
    RETURN_IF_ERROR(renamePath(observers, all[i].folder, hidden));
    RETURN_IF_ERROR(removeTree(observers, hidden));
  }
  return Status::ok();
}

} // namespace shardc::checkpoint
