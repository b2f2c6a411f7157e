// Two classes map the name and the part of a parameter to a key of the checkpoint: one for
// fsdp_dtensor and torch_dcp, which only differ in names, and one for torch_dist. A third one has
// the weights of a Hugging Face model.
#include "runtime/save/LoadSource.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::save {
namespace {

using checkpoint::Box;
using checkpoint::CheckpointFormat;
using checkpoint::Element;
using checkpoint::LoadDifferences;
using checkpoint::ParamPart;
using checkpoint::ParamRequest;
using checkpoint::PlainValue;
using checkpoint::RunState;
using checkpoint::Shape;
using checkpoint::StoredParam;
using checkpoint::StoredPart;
using checkpoint::TorchDistCheckpoint;

class FsdpSource final : public LoadSource {
public:
  FsdpSource(checkpoint::FsdpCheckpoint checkpoint, CheckpointFormat format)
      : checkpoint_(std::move(checkpoint)), format_(format) {}

  std::string_view format() const override { return formatName(format_); }
  const checkpoint::CheckpointReader *reader() const override { return &checkpoint_.reader(); }
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const override {
    return checkpoint_.shapeOf(name, part);
  }
  LoadDifferences check(std::span<const ParamRequest> requests) const override {
    return checkpoint_.check(requests);
  }
  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows) const override {
    return checkpoint_.read(name, part, box, type, dst, padsRows);
  }
  Result<RunState> runState() const override {
    return checkpoint::readRunState(checkpoint_.reader());
  }
  Result<std::optional<int64_t>> updates(std::string_view name) const override;
  Result<std::optional<PlainValue>> setting(std::string_view name,
                                            const std::string &field) const override;

private:
  checkpoint::FsdpCheckpoint checkpoint_;
  CheckpointFormat format_; ///< fsdp_dtensor or torch_dcp, which only differ in names
};

Result<std::optional<int64_t>> FsdpSource::updates(std::string_view name) const {
  ASSIGN_OR_RETURN(std::optional<PlainValue> said, checkpoint_.setting(name, "step"));
  if (!said)
    return std::optional<int64_t>();
  std::optional<int64_t> count = said->wholeNumber();
  if (!count || *count < 0)
    return makeStatus(report::CheckpointDamaged,
                      "the optimizer's step of '{}' in checkpoint '{}' is {}, not a number of "
                      "updates",
                      name, folder(), textOf(*said));
  return count;
}

Result<std::optional<PlainValue>> FsdpSource::setting(std::string_view name,
                                                      const std::string &field) const {
  ASSIGN_OR_RETURN(std::optional<PlainValue> said, checkpoint_.setting(name, field));
  std::string ofGroup = fmt::format("optimizer.param_groups.0.{}", field); // key in torch_dcp
  if (said || checkpoint_.reader().findObject(ofGroup) == nullptr)
    return said;
  ASSIGN_OR_RETURN(PlainValue value, checkpoint::readPlainObject(checkpoint_.reader(), ofGroup));
  return std::optional(std::move(value));
}

/// Reads Megatron's `torch_dist` checkpoints.
class TorchDistSource final : public LoadSource {
public:
  explicit TorchDistSource(TorchDistCheckpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  std::string_view format() const override { return formatName(CheckpointFormat::TorchDist); }
  const checkpoint::CheckpointReader *reader() const override { return &checkpoint_.reader(); }
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const override {
    const StoredParam *param = checkpoint_.find(name, storedPart(name, part));
    return param ? std::optional(param->shape()) : std::nullopt;
  }
  LoadDifferences check(std::span<const ParamRequest> requests) const override;
  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows) const override;
  Result<RunState> runState() const override { return checkpoint::readRunState(checkpoint_); }
  Result<std::optional<int64_t>> updates(std::string_view name) const override {
    return checkpoint::savedUpdates(checkpoint_, name);
  }
  Result<std::optional<PlainValue>> setting(std::string_view name,
                                            const std::string &field) const override;

private:
  StoredPart storedPart(std::string_view name, ParamPart part) const {
    bool hasMaster = part == ParamPart::Weight && checkpoint_.find(name, StoredPart::Master);
    return hasMaster ? StoredPart::Master : checkpoint::storedPartOf(part);
  }

  TorchDistCheckpoint checkpoint_;
};

std::string keyText(std::string_view name, ParamPart part) {
  return part == ParamPart::Weight
             ? std::string(name)
             : fmt::format("optimizer.state.{}.{}", checkpoint::momentName(part), name);
}

/// Adds a requested part that is missing or has another shape to the report.
void compareShape(const ParamRequest &request, const std::optional<Shape> &saved,
                  LoadDifferences &report) {
  std::string key = keyText(request.name, request.part);
  if (saved && *saved != request.shape)
    report.mismatched.push_back(
        fmt::format("Size mismatch between saved torch.Size({}) and current: torch.Size({}) for {}",
                    checkpoint::shapeText(*saved), checkpoint::shapeText(request.shape), key));
  if (saved)
    return;
  report.missing.push_back(key);
  if (request.part == ParamPart::Weight)
    report.missingWeights.push_back(key);
}

/// Compares what the run needs with what the checkpoint has, by name and shape only. A weight may
/// be stored as the weight or as the fp32 master; the one that is not read is not reported as
/// unexpected.
LoadDifferences TorchDistSource::check(std::span<const ParamRequest> requests) const {
  LoadDifferences report;
  std::set<std::pair<std::string, StoredPart>> wanted;
  for (const ParamRequest &request : requests) {
    StoredPart part = storedPart(request.name, request.part);
    std::string plain = checkpoint::plainName(request.name);
    wanted.insert({{plain, part}, {checkpoint::localName(plain), part}});
    if (request.part == ParamPart::Weight) // another form of a requested weight is not surplus
      for (const std::string &known : {plain, checkpoint::localName(plain)})
        wanted.insert({{known, StoredPart::Weight}, {known, StoredPart::Master}});
    compareShape(request, shapeOf(request.name, request.part), report);
  }
  std::set<std::string> unexpected; // stacked layers have one key
  for (const auto &[key, box] : checkpoint_.params())
    if (!wanted.contains(key))
      unexpected.insert(box.tensor->name);
  report.unexpected.assign(unexpected.begin(), unexpected.end());
  return report;
}

Status TorchDistSource::read(std::string_view name, ParamPart part, const Box &box, Element type,
                             void *dst, bool padsRows) const {
  std::optional<Shape> saved = shapeOf(name, part);
  Box there = saved && padsRows ? clearPadding(box, (*saved)[0], type, dst) : box;
  return checkpoint_.read(name, storedPart(name, part), there, type, dst);
}

Result<std::optional<PlainValue>> TorchDistSource::setting(std::string_view,
                                                           const std::string &field) const {
  if (checkpoint_.common().empty())
    return std::optional<PlainValue>();
  for (const auto &group : checkpoint_.paramGroups()) {
    auto found = group.find(field);
    if (found == group.end())
      continue;
    auto value = checkpoint::plainValueOf(checkpoint_.commonGraph(), found->second);
    if (value.isOk())
      return std::optional(std::move(*value));
  }
  return std::optional<PlainValue>();
}

/// The weights of a Hugging Face model, which has no optimizer state.
class HfSource final : public LoadSource {
public:
  explicit HfSource(std::unique_ptr<checkpoint::HfWeights> model) : model_(std::move(model)) {}

  std::string_view format() const override { return "a Hugging Face model"; }
  const checkpoint::HfWeights *model() const override { return model_.get(); }
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const override {
    return part == ParamPart::Weight ? model_->shapeOf(name) : std::nullopt;
  }
  LoadDifferences check(std::span<const ParamRequest> requests) const override {
    LoadDifferences report;
    std::set<std::string_view> wanted;
    for (const ParamRequest &request : requests) {
      compareShape(request, shapeOf(request.name, request.part), report);
      wanted.insert(request.name);
    }
    report.unexpected = model_->names();
    std::erase_if(report.unexpected, [&](const auto &name) { return wanted.contains(name); });
    return report;
  }
  Status read(std::string_view name, ParamPart, const Box &box, Element type, void *dst,
              bool) const override {
    return model_->read(name, box, type, dst);
  }
  Result<RunState> runState() const override {
    RunState state;
    state.args = model_->arguments();
    return state;
  }

private:
  std::unique_ptr<checkpoint::HfWeights> model_;
};

bool isOfOptimizer(const checkpoint::TensorMeta &tensor) {
  return tensor.name.starts_with("optimizer.");
}

/// The error for another format: upstream's message, both formats, and remedies.
Status otherFormat(const std::string &folder, CheckpointFormat found, const LoadChoice &choice) {
  auto is = [&](CheckpointFormat format) { return choice.format == formatName(format); };
  std::string_view rule, conversion;
  if (is(CheckpointFormat::FsdpDtensor))
    rule = "Megatron FSDP only supports fsdp_dtensor checkpoint format: ";
  else if (found == CheckpointFormat::FsdpDtensor)
    rule = "fsdp_dtensor checkpoint format only supports Megatron FSDP: ";
  for (CheckpointFormat needed : {CheckpointFormat::FsdpDtensor, CheckpointFormat::TorchDist})
    if (is(needed))
      conversion = checkpoint::conversionOf(found, needed);
  std::string text = fmt::format("{}'{}' is {}, and this run's checkpoints are {}", rule, folder,
                                 formatName(found), choice.format);
  if (!conversion.empty())
    text += fmt::format("\nnote: 'shardc ckpt convert {}{} {} OUT' converts it", conversion,
                        choice.isGated && found == CheckpointFormat::TorchDist ? " --swiglu" : "",
                        folder);
  return makeStatus(
      report::CheckpointNotSupported,
      text + "\nnote: 'checkpoint.convert_on_load = true' converts it while it is loaded");
}

} // namespace

bool isHfModel(const std::string &folder) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(folder) / "config.json", error) &&
         !checkpoint::isCheckpoint(folder);
}

/// Weights are read in any format. Optimizer state of another format needs `converts`.
Result<std::unique_ptr<LoadSource>> LoadSource::open(const std::string &folder,
                                                     const LoadChoice &choice, ReportSink emit) {
  std::unique_ptr<LoadSource> source;
  std::optional<CheckpointFormat> found;
  if (isHfModel(folder)) {
    ASSIGN_OR_RETURN(auto model, checkpoint::HfWeights::open(folder, {}, std::move(emit)));
    source = std::make_unique<HfSource>(std::move(model));
  } else {
    ASSIGN_OR_RETURN(found, checkpoint::detectFormat(folder));
    if (formatName(*found) != choice.format && !choice.converts && !choice.weightsOnly) {
      ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(folder));
      if (std::ranges::any_of(reader.metadata().tensors, isOfOptimizer))
        return otherFormat(folder, *found, choice);
    }
  }
  if (found == CheckpointFormat::TorchDist) {
    ASSIGN_OR_RETURN(TorchDistCheckpoint opened,
                     TorchDistCheckpoint::open(folder, choice.weightsOnly,
                                               checkpoint::Verify::Touched, std::move(emit)));
    source = std::make_unique<TorchDistSource>(std::move(opened));
  } else if (found) {
    ASSIGN_OR_RETURN(
        checkpoint::CheckpointReader reader,
        checkpoint::CheckpointReader::open(folder, checkpoint::Verify::Touched, std::move(emit)));
    if (found == CheckpointFormat::FsdpDtensor && !choice.weightsOnly)
      RETURN_IF_ERROR(checkpoint::checkOptimizerNames(reader));
    ASSIGN_OR_RETURN(checkpoint::FsdpCheckpoint opened,
                     checkpoint::FsdpCheckpoint::open(std::move(reader)));
    source = std::make_unique<FsdpSource>(std::move(opened), *found);
  }
  source->folder_ = folder;
  return source;
}

} // namespace shardc::save
