// Two classes map the name and the part of a parameter to a key of the checkpoint: one for
// fsdp_dtensor and torch_dcp, which only differ in names, and one for torch_dist. HfWeights has the
// weights of a Hugging Face model.
#include "runtime/checkpoint/ParamSource.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/HfConvert.h"

namespace shardc::checkpoint {
namespace {

class FsdpSource final : public ParamSource {
public:
  FsdpSource(FsdpCheckpoint checkpoint, CheckpointFormat format)
      : ParamSource(checkpoint.reader().folder()), checkpoint_(std::move(checkpoint)),
        format_(format) {}

  std::string_view format() const override { return formatName(format_); }
  const CheckpointReader *checkpoint() const override { return &checkpoint_.reader(); }
  const FsdpCheckpoint *fsdp() const override { return &checkpoint_; }
  std::vector<std::string> names() const override { return checkpoint_.names(); }
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const override {
    return checkpoint_.shapeOf(name, part);
  }
  std::optional<Element> typeOf(std::string_view name, ParamPart part) const override {
    return checkpoint_.typeOf(name, part);
  }
  LoadDifferences check(std::span<const ParamRequest> requests) const override {
    return checkpoint_.check(requests);
  }
  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows) const override {
    return checkpoint_.read(name, part, box, type, dst, padsRows);
  }
  Result<RunState> runState() const override { return readRunState(checkpoint_.reader()); }

  Result<std::optional<int64_t>> updates(std::string_view name) const override {
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

  Result<std::optional<PlainValue>> setting(std::string_view name,
                                            const std::string &field) const override {
    ASSIGN_OR_RETURN(std::optional<PlainValue> said, checkpoint_.setting(name, field));
    std::string ofGroup = fmt::format("optimizer.param_groups.0.{}", field); // key in torch_dcp
    if (said || checkpoint_.reader().findObject(ofGroup) == nullptr)
      return said;
    ASSIGN_OR_RETURN(PlainValue value, readPlainObject(checkpoint_.reader(), ofGroup));
    return std::optional(std::move(value));
  }

private:
  FsdpCheckpoint checkpoint_;
  CheckpointFormat format_; ///< fsdp_dtensor or torch_dcp, which only differ in names
};

std::string keyText(std::string_view name, ParamPart part) {
  return part == ParamPart::Weight ? std::string(name)
                                   : fmt::format("optimizer.state.{}.{}", momentName(part), name);
}

/// Reads Megatron's `torch_dist` checkpoints.
class TorchDistSource final : public ParamSource {
public:
  explicit TorchDistSource(TorchDistCheckpoint checkpoint)
      : ParamSource(checkpoint.reader().folder()), checkpoint_(std::move(checkpoint)) {}

  std::string_view format() const override { return formatName(CheckpointFormat::TorchDist); }
  const CheckpointReader *checkpoint() const override { return &checkpoint_.reader(); }
  const TorchDistCheckpoint *torchDist() const override { return &checkpoint_; }

  std::vector<std::string> names() const override {
    std::set<std::string> names;
    for (const auto &[key, param] : checkpoint_.params())
      names.insert(key.first);
    return {names.begin(), names.end()};
  }
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const override {
    const StoredParam *param = checkpoint_.find(name, storedPart(name, part));
    return param ? std::optional(param->shape()) : std::nullopt;
  }
  std::optional<Element> typeOf(std::string_view name, ParamPart part) const override {
    const StoredParam *param = checkpoint_.find(name, storedPart(name, part));
    return param ? std::optional(param->tensor->type) : std::nullopt;
  }

  /// Compares what the run needs with what the checkpoint has, by name and shape only. A weight may
  /// be stored as the weight or as the fp32 master; the one that is not read is not reported as
  /// unexpected.
  LoadDifferences check(std::span<const ParamRequest> requests) const override {
    LoadDifferences report;
    std::set<std::pair<std::string, StoredPart>> wanted;
    for (const ParamRequest &request : requests) {
      StoredPart part = storedPart(request.name, request.part);
      std::string plain = plainName(request.name);
      wanted.insert({{plain, part}, {localName(plain), part}});
      if (request.part == ParamPart::Weight) // another form of a requested weight is not surplus
        for (const std::string &known : {plain, localName(plain)})
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

  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows) const override {
    std::optional<Shape> saved = shapeOf(name, part);
    Box there = saved && padsRows ? clearPadding(box, (*saved)[0], type, dst) : box;
    return checkpoint_.read(name, storedPart(name, part), there, type, dst);
  }
  Result<RunState> runState() const override { return readRunState(checkpoint_); }
  Result<std::optional<int64_t>> updates(std::string_view name) const override {
    return savedUpdates(checkpoint_, name);
  }

  Result<std::optional<PlainValue>> setting(std::string_view,
                                            const std::string &field) const override {
    if (checkpoint_.common().empty())
      return std::optional<PlainValue>();
    for (const auto &group : checkpoint_.paramGroups()) {
      auto found = group.find(field);
      if (found == group.end())
        continue;
      auto value = plainValueOf(checkpoint_.commonGraph(), found->second);
      if (value.isOk())
        return std::optional(std::move(*value));
    }
    return std::optional<PlainValue>();
  }

private:
  StoredPart storedPart(std::string_view name, ParamPart part) const {
    bool hasMaster = part == ParamPart::Weight && checkpoint_.find(name, StoredPart::Master);
    return hasMaster ? StoredPart::Master : storedPartOf(part);
  }

  TorchDistCheckpoint checkpoint_;
};

bool isOfOptimizer(const TensorMeta &tensor) { return tensor.name.starts_with("optimizer."); }

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
      conversion = conversionOf(found, needed);
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

Result<std::unique_ptr<ParamSource>> openFsdp(CheckpointReader reader, CheckpointFormat format) {
  ASSIGN_OR_RETURN(FsdpCheckpoint opened, FsdpCheckpoint::open(std::move(reader)));
  return std::unique_ptr<ParamSource>(std::make_unique<FsdpSource>(std::move(opened), format));
}

} // namespace

bool isHfModel(const std::string &folder) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(folder) / "config.json", error) &&
         !isCheckpoint(folder);
}

void compareShape(const ParamRequest &request, const std::optional<Shape> &saved,
                  LoadDifferences &report) {
  std::string key = keyText(request.name, request.part);
  if (saved && *saved != request.shape)
    report.mismatched.push_back(
        fmt::format("Size mismatch between saved torch.Size({}) and current: torch.Size({}) for {}",
                    shapeText(*saved), shapeText(request.shape), key));
  if (saved)
    return;
  report.missing.push_back(key);
  if (request.part == ParamPart::Weight)
    report.missingWeights.push_back(key);
}

/// Weights are read in any format. Optimizer state of another format needs `converts`.
Result<std::unique_ptr<ParamSource>> ParamSource::open(const std::string &folder,
                                                       const LoadChoice &choice, ReportSink emit) {
  if (isHfModel(folder)) {
    ASSIGN_OR_RETURN(std::unique_ptr<ParamSource> model, HfWeights::open(folder, {}, emit));
    return model;
  }
  ASSIGN_OR_RETURN(CheckpointFormat format, detectFormat(folder));
  bool isOther = formatName(format) != choice.format && !choice.converts && !choice.weightsOnly;
  bool isDist = format == CheckpointFormat::TorchDist;
  if (isOther || !isDist) {
    ASSIGN_OR_RETURN(CheckpointReader reader,
                     CheckpointReader::open(folder, Verify::Touched, isDist ? nullptr : emit));
    if (isOther && std::ranges::any_of(reader.metadata().tensors, isOfOptimizer))
      return otherFormat(folder, format, choice);
    if (format == CheckpointFormat::FsdpDtensor && !choice.weightsOnly)
      RETURN_IF_ERROR(checkOptimizerNames(reader));
    if (!isDist)
      return openFsdp(std::move(reader), format);
  }
  ASSIGN_OR_RETURN(
      TorchDistCheckpoint opened,
      TorchDistCheckpoint::open(folder, choice.weightsOnly, Verify::Touched, std::move(emit)));
  return std::unique_ptr<ParamSource>(std::make_unique<TorchDistSource>(std::move(opened)));
}

/// Masters are only in the optimizer state. If it cannot be read because the file does not describe
/// its layout, only the weights are opened.
Result<std::unique_ptr<ParamSource>> ParamSource::openCheckpoint(const std::string &folder,
                                                                 ReportSink emit, Verify verify,
                                                                 const ReportSink &leftOut) {
  ASSIGN_OR_RETURN(CheckpointFormat format, detectFormat(folder));
  if (format != CheckpointFormat::TorchDist) {
    ASSIGN_OR_RETURN(CheckpointReader reader,
                     CheckpointReader::open(folder, verify, std::move(emit)));
    return openFsdp(std::move(reader), format);
  }
  Result<TorchDistCheckpoint> whole = TorchDistCheckpoint::open(folder, false, verify, emit);
  if (whole.isOk())
    return std::unique_ptr<ParamSource>(std::make_unique<TorchDistSource>(std::move(*whole)));
  ASSIGN_OR_RETURN(TorchDistCheckpoint weights,
                   TorchDistCheckpoint::open(folder, true, verify, std::move(emit)));
  if (leftOut)
    leftOut(makeReport(report::OptimizerLeftOut, whole.status().message()));
  return std::unique_ptr<ParamSource>(std::make_unique<TorchDistSource>(std::move(weights)));
}

Result<std::unique_ptr<ParamSource>> ParamSource::openModel(const std::string &folder,
                                                            const ReportSink &emit) {
  if (isHfModel(folder)) {
    auto emitUntrained = [&](const Report &remark) {
      if (emit && remark.id != report::HfPaddingTrained.info().id)
        emit(remark);
    };
    ASSIGN_OR_RETURN(std::unique_ptr<ParamSource> model,
                     HfWeights::open(folder, {}, emitUntrained));
    return model;
  }
  ASSIGN_OR_RETURN(std::string in, findCheckpoint(folder));
  return openCheckpoint(in, emit);
}

} // namespace shardc::checkpoint
