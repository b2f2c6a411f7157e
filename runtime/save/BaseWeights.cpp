// Opens the base weights through ParamSource.
#include "runtime/save/BaseWeights.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/Float8Scales.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/plan/HostCells.h"
#include "runtime/save/ModelDifferences.h"

namespace shardc::save {
namespace {

using checkpoint::Box;
using checkpoint::Element;
using checkpoint::ParamPart;
using checkpoint::Shape;

Shape shapeOfParam(const plan::Param &param) {
  plan::Type type = param.tensorType();
  return {type.shape.begin(), type.shape.begin() + type.rank};
}

/// Whether the saved shape fits the parameter. The vocabulary may be padded to another number of
/// rows; all real rows exist in both.
bool fits(const plan::Plan &plan, const plan::Param &param, const Shape &saved) {
  Shape own = shapeOfParam(param);
  int64_t real = plan.job.model.vocabSize;
  return saved == own || (checkpoint::isTable(param.name) && saved.size() == own.size() &&
                          real > 0 && saved[0] >= real && own[0] >= real &&
                          std::equal(saved.begin() + 1, saved.end(), own.begin() + 1));
}

} // namespace

bool isInBase(const plan::Param &param) { return !plan::isOfAdapter(param); }

bool isKeptInBase(const plan::Plan &plan, const plan::Param &param) {
  return param.block >= 0 && plan::isOfBase(plan, plan.blocks[static_cast<size_t>(param.block)]);
}

/// Returns null if the job trains no adapters or names no base. The arguments of the base are
/// compared with the recipe, since weights of the same shapes may belong to another function.
Result<std::unique_ptr<BaseWeights>> BaseWeights::open(const plan::Plan &plan, std::string folder,
                                                       ReportSink emit) {
  if (!plan.job.peft.scheme || folder.empty())
    return std::unique_ptr<BaseWeights>();
  std::unique_ptr<BaseWeights> base(new BaseWeights(plan));
  base->folder_ = std::move(folder);
  if (!checkpoint::isHfModel(base->folder_)) {
    Result<std::string> found = checkpoint::findCheckpoint(base->folder_);
    if (!found.isOk())
      return Status(found.status())
          .withMessage(
              fmt::format("checkpoint.pretrained_checkpoint: {}", found.status().message()));
    base->folder_ = *std::move(found);
  }
  checkpoint::LoadChoice choice{plan.job.text(plan::JobField::checkpoint_ckptFormat),
                                /*weightsOnly=*/true,
                                /*converts=*/true, plan.job.model.gatedLinearUnit};
  ASSIGN_OR_RETURN(base->checkpoint_, checkpoint::ParamSource::open(base->folder_, choice, emit));
  ASSIGN_OR_RETURN(checkpoint::RunState said, base->checkpoint_->runState());
  RETURN_IF_ERROR(base->check());
  std::vector<ModelDifference> found = modelDifferences(plan.job, said);
  const std::string_view tied =
      plan::jobInfo(plan::JobField::model_shareEmbeddingsAndOutputWeights).path;
  if (!plan.job.model.shareEmbeddingsAndOutputWeights) // the two matrices begin as one
    std::erase_if(found, [&](const ModelDifference &one) { return one.option == tied; });
  RETURN_IF_ERROR(judgeDifferences(plan.job, base->folder_, found, emit));
  return base;
}

std::optional<Shape> BaseWeights::shapeOf(std::string_view name) const {
  return checkpoint_->shapeOf(checkpoint_->tensorOf(name), ParamPart::Weight);
}

Status BaseWeights::read(std::string_view name, const Box &box, Element type, void *dst) const {
  std::optional<Shape> saved = shapeOf(name);
  bool isPadded = saved && box.offset[0] + box.shape[0] > (*saved)[0];
  return checkpoint_->read(checkpoint_->tensorOf(name), ParamPart::Weight, box, type, dst,
                           isPadded);
}

Status BaseWeights::readInPieces(std::string_view name, const Box &box,
                                 const checkpoint::TakeNumbers &take) const {
  return checkpoint::readInPieces(
      box, [&](const Box &piece, float *dst) { return read(name, piece, Element::F32, dst); },
      take);
}

Result<NestedScales> BaseWeights::nestedScales(const plan::Param &param) const {
  return checkpoint::nestedScales(*checkpoint_, plan_, param);
}

Status BaseWeights::check() const {
  std::vector<std::string> missing, others;
  for (const plan::Param &param : plan_.params)
    for (int64_t i = 0; isInBase(param) && i < param.tensorCount(); ++i) {
      std::string name = param.tensorName(i);
      std::optional<Shape> saved = shapeOf(name);
      if (!saved)
        missing.push_back(name);
      else if (!fits(plan_, param, *saved))
        others.push_back(fmt::format("{}: {} there, {} needed", name, checkpoint::shapeText(*saved),
                                     checkpoint::shapeText(shapeOfParam(param))));
    }
  if (missing.empty() && others.empty())
    return Status::ok();
  std::string text;
  if (!missing.empty())
    text +=
        fmt::format("\n  {} tensors are missing:{}", missing.size(), checkpoint::listed(missing));
  if (!others.empty())
    text += fmt::format("\n  {} tensors have another shape:{}", others.size(),
                        checkpoint::listed(others));
  return makeStatus(report::CheckpointMismatch,
                    "checkpoint.pretrained_checkpoint: '{}' is of another model than the one that "
                    "adapters are trained for{}",
                    folder_, text);
}

/// Reads the whole tensor once. Ranks of a process share the result.
Result<float> BaseWeights::amax(const plan::Param &param, int64_t number) const {
  std::string name = param.tensorName(number);
  if (auto known = amaxes_.find(name); known != amaxes_.end())
    return known->second;
  uint32_t most = 0;
  RETURN_IF_ERROR(readInPieces(name, Box::whole(shapeOfParam(param)),
                               [&](const Box &, std::span<const float> numbers) {
                                 for (float number : numbers)
                                   most = std::max(most, magnitudeBits(number));
                                 return Status::ok();
                               }));
  return amaxes_[name] = floatOfLargest(most);
}

/// Of the tensor in the compute type.
Result<std::string> BaseWeights::fingerprint(const plan::Param &param, int64_t number) const {
  std::string name = param.tensorName(number);
  Shape shape = shapeOfParam(param);
  if (std::optional<Shape> saved = shapeOf(name); saved && !saved->empty())
    shape[0] = std::min(shape[0], (*saved)[0]);
  shape = checkpoint::withoutPadding(name, std::move(shape), plan_.job.model.vocabSize);
  DType stored = param.tensorType().dtype;
  return checkpoint::fingerprintOf(
      shape, checkpoint::elementOf(stored == DType::F8E4M3 ? DType::F32 : stored),
      [&](const Box &box, Element type, void *dst) { return read(name, box, type, dst); });
}

Result<std::string> BaseWeights::record() const {
  std::error_code error; // runs elsewhere read the record, too
  const std::filesystem::path folder = std::filesystem::absolute(folder_, error).lexically_normal();
  checkpoint::BaseRecord record{error ? folder_ : folder.string(), {}};
  for (const plan::Param &param : plan_.params)
    for (int64_t i = 0; isKeptInBase(plan_, param) && i < param.tensorCount(); ++i) {
      ASSIGN_OR_RETURN(record.fingerprints[param.tensorName(i)], fingerprint(param, i));
    }
  return checkpoint::baseRecordText(record);
}

/// Compares fingerprints, not the weights themselves, which a save does not contain. All tensors
/// that differ are listed.
Status BaseWeights::compare(const checkpoint::BaseRecord &record,
                            const std::string &adapters) const {
  std::vector<std::string> others;
  for (const plan::Param &param : plan_.params)
    for (int64_t i = 0; isKeptInBase(plan_, param) && i < param.tensorCount(); ++i) {
      std::string name = param.tensorName(i);
      auto found = record.fingerprints.find(name);
      ASSIGN_OR_RETURN(std::string own, fingerprint(param, i));
      if (found == record.fingerprints.end() || found->second != own)
        others.push_back(name);
    }
  if (others.empty())
    return Status::ok();
  return makeStatus(report::CheckpointMismatch, "checkpoint.pretrained_checkpoint: {}",
                    checkpoint::otherBaseText(record, folder_, adapters, others));
}

} // namespace shardc::save
