// Reads and writes the file in JSON. It has the hash of the packs for which it was computed, and
// one log-probability per row, at most 0.
#include "runtime/data/PackReference.h"

#include <cmath>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 30;
constexpr int64_t kReferenceFormat = 1;
constexpr const char *kFormat = "reference_format", *kPacks = "packs_sha256",
                     *kValues = "log_probabilities";

std::string pathOf(const PackFiles &files) { return files.prefix() + ".reference.json"; }

} // namespace

/// Refuses a reference for other packs by their hash: rows are matched by their number only.
Result<std::vector<double>> parsePackReference(std::string_view text, const std::string &path,
                                               const PackManifest &manifest) {
  auto wrong = [&](const std::string &what) { return makeStatus(report::DataDamaged, path, what); };
  nlohmann::json json = parseJson(text);
  if (!json.is_object() || !json.contains(kFormat) || json[kFormat] != kReferenceFormat)
    return wrong(fmt::format("it is no reference of format {}", kReferenceFormat));
  if (!json.contains(kPacks) || json[kPacks] != manifest.sha256)
    return makeStatus(report::DataRefused,
                      "'{}' was made for other packs; 'shardc data reference' makes it anew", path);
  auto values = json.find(kValues);
  if (values == json.end() || !values->is_array() ||
      static_cast<int64_t>(values->size()) != manifest.rows)
    return wrong(fmt::format("'{}' are not those of {} rows", kValues, manifest.rows));
  std::vector<double> numbers;
  numbers.reserve(values->size());
  for (const nlohmann::json &value : *values) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() > 0)
      return wrong(fmt::format("row {} has no log-probability of 0 or less", numbers.size()));
    numbers.push_back(value.get<double>());
  }
  return numbers;
}

/// The reference of the packs `files`; the message for a missing file says which command makes it.
Result<std::vector<double>> readPackReference(const PackFiles &files) {
  const std::string path = pathOf(files);
  Result<DataFile> file = DataFile::open(path);
  if (!file.isOk() && file.status().code() == StatusCode::NotFound)
    return makeStatus(
        report::DataNotFound,
        "the packs '{0}' have no reference: '{1}' does not exist; 'shardc data "
        "reference {0} --model=FOLDER' makes it by the model that training begins with",
        files.prefix(), path);
  RETURN_IF_ERROR(file.status());
  if (file->size() > kBytesMax)
    return makeStatus(report::DataDamaged, path, "the reference is too large");
  std::string text(file->size(), '\0');
  RETURN_IF_ERROR(file->readAt(0, {reinterpret_cast<uint8_t *>(text.data()), text.size()}));
  return parsePackReference(text, path, files.manifest());
}

/// Replaces the file as a whole, so an interrupted run leaves the old one.
Status writePackReference(const PackFiles &files, const std::string &model,
                          std::span<const double> logProbabilities) {
  nlohmann::ordered_json json = {{kFormat, kReferenceFormat},
                                 {"model", model},
                                 {kPacks, files.manifest().sha256},
                                 {kValues, std::vector<double>(logProbabilities.begin(),
                                                              logProbabilities.end())}};
  ASSIGN_OR_RETURN(StagedFile file, StagedFile::create(pathOf(files)));
  RETURN_IF_ERROR(file.append(toText(json, 1) + "\n"));
  RETURN_IF_ERROR(file.sync());
  return file.commit();
}

} // namespace shardc::data
