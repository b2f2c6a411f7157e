#include "runtime/checkpoint/BaseRecord.h"

#include <algorithm>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Sha256.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr uint64_t kRecordBytesMax = uint64_t{64} << 20;
constexpr size_t kDigits = 16; ///< hexadecimal digits of a fingerprint
constexpr int64_t kRowsOfFingerprint = 4;

} // namespace

Result<BaseRecord> readBaseRecord(const CheckpointReader &adapters) {
  BaseRecord record;
  if (!adapters.files().has(kBaseFile))
    return record;
  ASSIGN_OR_RETURN(std::string text, adapters.files().read(kBaseFile, kRecordBytesMax));
  nlohmann::json said = parseJson(text);
  if (!said.is_object() || !said.contains("fingerprints") || !said["fingerprints"].is_object())
    return makeStatus(report::CheckpointDamaged, "'{}/{}' has no fingerprints of the base weights",
                      adapters.folder(), kBaseFile);
  if (said.contains("base") && said["base"].is_string())
    record.folder = said["base"].get<std::string>();
  for (const auto &[name, print] : said["fingerprints"].items())
    record.fingerprints[name] = print.is_string() ? print.get<std::string>() : std::string();
  return record;
}

std::string baseRecordText(const BaseRecord &record) {
  nlohmann::json text = {{"base", record.folder}, {"fingerprints", record.fingerprints}};
  return toText(text, 2) + "\n";
}

bool isTable(std::string_view name) { return name == kEmbeddingTable || name == kOutputLayer; }

Shape withoutPadding(std::string_view name, Shape shape, int64_t vocabSize) {
  if (isTable(name) && vocabSize > 0 && !shape.empty())
    shape[0] = std::min(shape[0], vocabSize);
  return shape;
}

Result<std::string> fingerprintOf(const Shape &shape, Element type, const ReadBox &read) {
  Sha256 sum;
  sum.add(shapeText(shape));
  Box box{Shape(shape.size(), 0), shape};
  int64_t rows = shape[0], count = std::min(kRowsOfFingerprint, rows);
  box.shape[0] = shape.size() == 1 ? rows : 1;
  std::vector<uint8_t> bytes(static_cast<size_t>(tensorBytes(type, box.shape).value_or(0)));
  for (int64_t i = 0; i < (shape.size() == 1 ? 1 : count); ++i) {
    box.offset[0] = shape.size() > 1 && count > 1 ? i * (rows - 1) / (count - 1) : 0;
    RETURN_IF_ERROR(read(box, type, bytes.data()));
    sum.add({reinterpret_cast<const char *>(bytes.data()), bytes.size()});
  }
  return sum.hex().substr(0, kDigits);
}

Result<std::map<std::string, std::string>> fingerprintsOf(const plan::Plan &plan,
                                                          const FindTensor &find) {
  std::map<std::string, std::string> prints;
  for (const plan::Param &param : plan.params)
    for (int64_t i = 0; i < param.tensorCount(); ++i) {
      const std::string name = param.tensorName(i);
      auto tensor = find(param, name);
      if (!tensor)
        continue;
      Shape shape = withoutPadding(name, tensor->first, plan.job.model.vocabSize);
      ASSIGN_OR_RETURN(prints[name], fingerprintOf(shape, Element::BF16, tensor->second));
    }
  return prints;
}

std::string otherBaseText(const BaseRecord &record, const std::string &base,
                          const std::string &adapters, const std::vector<std::string> &tensors) {
  const std::string was =
      record.folder.empty() ? "another folder" : fmt::format("'{}'", record.folder);
  return fmt::format("'{}' has other weights than {}, for which the adapters in '{}' were trained; "
                     "{} tensors differ:{}",
                     base, was, adapters, tensors.size(), listed(tensors));
}

/// The record does not have the types in which the run computed, so each is tried.
Status warnOfOtherBase(const CheckpointReader &adapters, const ParamSource &base,
                       const ReportSink &emit) {
  ASSIGN_OR_RETURN(BaseRecord record, readBaseRecord(adapters));
  std::vector<std::string> others;
  for (const auto &[name, print] : record.fingerprints) {
    std::optional<Shape> shape = base.shapeOf(name);
    if (!shape || shape->empty() || isTable(name))
      continue;
    std::string own;
    for (Element type : {Element::F32, Element::BF16, Element::F16})
      if (own != print) {
        ASSIGN_OR_RETURN(own,
                         fingerprintOf(*shape, type,
                                       [&base, &name = name](const Box &box, Element as, void *to) {
                                         return base.read(name, box, as, to);
                                       }));
      }
    if (own != print)
      others.push_back(name);
  }
  if (!others.empty())
    emit(makeReport(report::OtherBase,
                    otherBaseText(record, base.folder(), adapters.folder(), others)));
  return Status::ok();
}

} // namespace shardc::checkpoint
