// Reads and writes the file in JSON. It has the hash of the packs for which it was computed, the
// fingerprints of the model's weights, and one log-probability per row, at most 0.
#include "runtime/data/PackReference.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 30;
constexpr int64_t kReferenceFormat = 1;
constexpr const char *kFormat = "reference_format", *kPacks = "packs_sha256",
                     *kValues = "log_probabilities", *kModel = "model", *kWeights = "weights";

std::string pathOf(const PackFiles &files) { return files.prefix() + ".reference.json"; }

} // namespace

/// Refuses a reference for other packs by their hash: rows are matched by their number only.
Result<PackReference> parsePackReference(std::string_view text, const std::string &path,
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
  PackReference reference;
  if (auto model = json.find(kModel); model != json.end() && model->is_string())
    reference.model = model->get<std::string>();
  if (auto weights = json.find(kWeights); weights != json.end() && weights->is_object())
    for (const auto &[name, print] : weights->items())
      reference.weights[name] = print.is_string() ? print.get<std::string>() : std::string();
  std::vector<double> &numbers = reference.logProbabilities;
  numbers.reserve(values->size());
  for (const nlohmann::json &value : *values) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() > 0)
      return wrong(fmt::format("row {} has no log-probability of 0 or less", numbers.size()));
    numbers.push_back(value.get<double>());
  }
  return reference;
}

Result<PackReference> readPackReference(const PackFiles &files) {
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
Status writePackReference(const PackFiles &files, const PackReference &reference) {
  nlohmann::ordered_json json = {{kFormat, kReferenceFormat},
                                 {kModel, reference.model},
                                 {kPacks, files.manifest().sha256},
                                 {kWeights, reference.weights},
                                 {kValues, reference.logProbabilities}};
  ASSIGN_OR_RETURN(StagedFile file, StagedFile::create(pathOf(files)));
  RETURN_IF_ERROR(file.append(toText(json, 1) + "\n"));
  RETURN_IF_ERROR(file.sync());
  return file.commit();
}

/// Names the first tensor that differs: those of another model usually all do.
Status checkReference(const PackFiles &files, const std::map<std::string, std::string> &weights) {
  ASSIGN_OR_RETURN(PackReference reference, readPackReference(files));
  auto [other, own] = std::ranges::mismatch(reference.weights, weights);
  const bool isAtEnd = other == reference.weights.end();
  if (isAtEnd && own == weights.end() && !weights.empty())
    return Status::ok();
  std::string why = reference.weights.empty() ? "the file does not state its weights"
                    : weights.empty()         ? "its weights are new"
                                      : fmt::format("'{}' differs", (isAtEnd ? own : other)->first);
  return makeStatus(report::DataRefused,
                    "'{}' is by the model '{}', and training begins with another one: {}; 'shardc "
                    "data reference {} --model=FOLDER' makes the reference again, and "
                    "'--any-reference' takes it as it is",
                    pathOf(files), reference.model, why, files.prefix());
}

} // namespace shardc::data
