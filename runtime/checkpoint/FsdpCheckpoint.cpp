#include "runtime/checkpoint/FsdpCheckpoint.h"

#include <algorithm>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

/// The key under which a part of a parameter is saved.
std::string keyOf(std::string_view name, ParamPart part) {
  return nameOfPath(tensorPath(name, part));
}

/// The rows of [begin, end) that lie in [first, first + rows).
RowRange rowsIn(int64_t begin, int64_t end, int64_t first, int64_t rows) {
  int64_t low = std::clamp(begin, first, first + rows), high = std::clamp(end, first, first + rows);
  return {low, std::max(low, high)};
}

/// Bytes of one row of a dense box.
int64_t rowBytes(Element type, ShapeView shape) {
  return tensorBytes(type, shape.subspan(1)).value_or(0);
}

} // namespace

Status addParamSlices(const TensorSlice &param, ParamPart part, bool isGated,
                      std::vector<TensorSlice> &slices, FsdpPrecision precision) {
  auto add = [&](const std::string &name, Shape globalShape, Box box, const void *data) {
    ItemPath path = tensorPath(name, part, precision);
    slices.push_back(
        {nameOfPath(path), param.dtype, std::move(globalShape), std::move(box), data, path});
  };
  const Shape &whole = param.globalShape;
  const Box &box = param.box;
  if (!isGated || !isGateable(param.name)) {
    add(param.name, whole, box, param.data);
    return Status::ok();
  }
  if (whole.empty() || !box.isInside(whole) || whole[0] % 2 != 0)
    return notSupported("gated '{}' of shape {} cannot be split into halves at {}", param.name,
                        shapeText(whole), boxText(box));
  int64_t half = whole[0] / 2, begin = box.offset[0], end = begin + box.shape[0];
  std::array<std::string, 2> names = splitNames(param.name);
  for (int64_t i = 0; i < 2; ++i) {
    RowRange rows = rowsIn(begin, end, i * half, half);
    Shape halfShape = whole;
    halfShape[0] = half;
    Box inHalf = box;
    inHalf.offset[0] = rows.begin - i * half;
    inHalf.shape[0] = rows.end - rows.begin;
    const auto *data = static_cast<const uint8_t *>(param.data);
    add(names[static_cast<size_t>(i)], std::move(halfShape), inHalf,
        inHalf.shape[0] != 0 ? data + (rows.begin - begin) * rowBytes(param.dtype, box.shape)
                             : nullptr);
  }
  return Status::ok();
}

Status addParam(RankWriter &writer, const TensorSlice &param, ParamPart part, bool isGated,
                FsdpPrecision precision) {
  std::vector<TensorSlice> slices;
  RETURN_IF_ERROR(addParamSlices(param, part, isGated, slices, precision));
  for (const TensorSlice &slice : slices)
    RETURN_IF_ERROR(writer.add(slice));
  return Status::ok();
}

PlainEntries torchAdamSettings() {
  return {{"amsgrad", false},
          {"maximize", false},
          {"foreach", {}},
          {"capturable", false},
          {"differentiable", false},
          {"fused", {}},
          {"decoupled_weight_decay", true}};
}

std::vector<BytesItem> groupMetaItems(std::string_view name, const GroupMeta &meta,
                                      FsdpPrecision precision) {
  PlainEntries fields = {
      {"is_expert_parallel", meta.isExpertParallel},
      {"default_config", meta.defaultConfig},
      {"wd_mult", meta.weightDecayMult},
      {"lr_mult", meta.lrMult},
      {"is_decoupled_lr", meta.isDecoupledLr},
      {"max_lr", meta.maxLr},
      {"min_lr", meta.minLr},
      {"lr", meta.lr},
      {"betas", PlainTuple{{meta.beta1, meta.beta2}}},
      {"eps", meta.eps},
      {"weight_decay", meta.weightDecay},
      {"bias_correction", meta.biasCorrection},
      {"step", meta.step},
  };
  for (auto &setting : torchAdamSettings())
    fields.push_back(std::move(setting));
  if (meta.momentum)
    fields.emplace_back("momentum", *meta.momentum);
  std::vector<BytesItem> items;
  for (const auto &[field, value] : fields)
    items.push_back(objectItem(groupMetaPath(name, field, precision), value));
  return items;
}

std::vector<TensorSlice> adamStepSlices(std::string_view name, bool isGated, const float &step,
                                        FsdpPrecision precision) {
  std::vector<std::string> tensors = {std::string(name)};
  if (isGated && isGateable(name)) {
    std::array<std::string, 2> halves = splitNames(name);
    tensors.assign(halves.begin(), halves.end());
  }
  std::vector<TensorSlice> slices;
  for (const std::string &tensor : tensors) {
    ItemPath path = adamStepPath(tensor, precision);
    slices.push_back({nameOfPath(path), Element::F32, {}, {}, &step, path});
  }
  return slices;
}

Result<FsdpCheckpoint> FsdpCheckpoint::open(CheckpointReader reader) {
  FsdpCheckpoint checkpoint(std::move(reader));
  RETURN_IF_ERROR(checkpoint.indexTensors());
  ASSIGN_OR_RETURN(checkpoint.groupSettings_, findGroupSettings(checkpoint.reader_));
  return checkpoint;
}

Status FsdpCheckpoint::indexTensors() {
  for (const TensorMeta &tensor : reader_.metadata().tensors) {
    if (std::optional<std::string> counted = parseAdamStepKey(tensor.name))
      if (tensor.shape.empty())
        adamSteps_[*counted] = &tensor;
    std::optional<ParamKey> key = parseTensorKey(tensor.name);
    if (!key)
      continue;
    if (tensor.name.starts_with("model") && tensor.name[5] != '.')
      return notSupported(
          "checkpoint '{}' has '{}', saved under virtual pipeline stages, which number "
          "layers within a stage; save it with one stage",
          reader_.folder(), tensor.name);
    auto [found, isNew] = tensors_.insert({{key->name, key->part}, &tensor});
    if (!isNew)
      return notSupported("'{}' and '{}' are the same parameter", found->second->name, tensor.name);
  }
  return Status::ok();
}

const TensorMeta *FsdpCheckpoint::find(std::string_view name, ParamPart part) const {
  std::string plain = plainName(name);
  auto found = tensors_.find(std::pair(plain, part));
  if (found == tensors_.end())
    found = tensors_.find(std::pair(localName(plain), part));
  return found != tensors_.end() ? found->second : nullptr;
}

std::optional<Shape> FsdpCheckpoint::shapeOf(std::string_view name, ParamPart part) const {
  if (const TensorMeta *whole = find(name, part))
    return whole->shape;
  std::array<std::string, 2> names = splitNames(name);
  const TensorMeta *gate = find(names[0], part), *up = find(names[1], part);
  if (gate == nullptr || up == nullptr || gate->shape != up->shape || gate->shape.empty())
    return std::nullopt;
  Shape shape = gate->shape;
  shape[0] *= 2;
  return shape;
}

std::optional<Element> FsdpCheckpoint::typeOf(std::string_view name, ParamPart part) const {
  const TensorMeta *tensor = find(name, part);
  if (tensor == nullptr)
    tensor = find(splitNames(name)[0], part);
  return tensor != nullptr ? std::optional(tensor->type) : std::nullopt;
}

std::vector<std::string> FsdpCheckpoint::names() const {
  std::set<std::string> names;
  for (const auto &[key, tensor] : tensors_) {
    if (key.second != ParamPart::Weight)
      continue;
    bool isHalf = key.first.ends_with("_w") || key.first.ends_with("_v");
    std::string joined = key.first.substr(0, key.first.size() - 2);
    names.insert(isHalf && isGateable(joined) ? joined : key.first);
  }
  return {names.begin(), names.end()};
}

/// Compares the requested parameters with the tensors of the checkpoint. A gated layer may be
/// stored whole or as two halves, so all names under which a request could be found count as
/// wanted.
LoadDifferences FsdpCheckpoint::check(std::span<const ParamRequest> requests) const {
  LoadDifferences report;
  std::set<std::pair<std::string, ParamPart>> wanted;
  for (const ParamRequest &request : requests) {
    std::optional<Shape> shape = shapeOf(request.name, request.part);
    wanted.insert({plainName(request.name), request.part});
    wanted.insert({localName(plainName(request.name)), request.part});
    for (const std::string &half : splitNames(request.name))
      wanted.insert({plainName(half), request.part});
    std::string key = keyOf(request.name, request.part);
    if (!shape) {
      report.missing.push_back(key);
      if (request.part == ParamPart::Weight)
        report.missingWeights.push_back(key);
    } else if (*shape != request.shape) {
      report.mismatched.push_back(fmt::format(
          "Size mismatch between saved torch.Size({}) and current: torch.Size({}) for {}",
          shapeText(*shape), shapeText(request.shape), key));
    }
  }
  for (const auto &[key, tensor] : tensors_)
    if (!wanted.contains(key))
      report.unexpected.push_back(tensor->name);
  return report;
}

Status FsdpCheckpoint::read(std::string_view name, ParamPart part, const Box &box, Element type,
                            void *dst, bool padsRows) const {
  auto *target = static_cast<uint8_t *>(dst);
  std::optional<Shape> saved = shapeOf(name, part);
  if (!saved)
    return makeStatus(report::TensorsMissing, "Missing key in checkpoint state_dict: {}.",
                      keyOf(name, part));
  if (saved->size() != box.offset.size() || box.shape.size() != box.offset.size())
    return notSupported("the box at {} is not inside '{}' of shape {}", boxText(box), name,
                        shapeText(*saved));
  Box there = padsRows ? clearPadding(box, (*saved)[0], type, target) : box;
  auto readRows = [&](const TensorMeta &tensor, const Box &rows, uint8_t *to) {
    return rows.isEmpty() ? Status::ok() : reader_.read(tensor.name, rows, type, to);
  };
  if (const TensorMeta *whole = find(name, part))
    return readRows(*whole, there, target);
  std::array<std::string, 2> names = splitNames(name);
  int64_t half = (*saved)[0] / 2, begin = there.offset[0];
  for (int64_t i = 0; i < 2; ++i) {
    RowRange rows = rowsIn(begin, begin + there.shape[0], i * half, half);
    Box inHalf = there;
    inHalf.offset[0] = rows.begin - i * half;
    inHalf.shape[0] = rows.end - rows.begin;
    RETURN_IF_ERROR(readRows(*find(names[static_cast<size_t>(i)], part), inHalf,
                             target + (rows.begin - begin) * rowBytes(type, there.shape)));
  }
  return Status::ok();
}

const GroupFields *FsdpCheckpoint::settingsOf(std::string_view name) const {
  auto found = groupSettings_.find(plainName(name));
  if (found == groupSettings_.end()) // some converters wrote the split names
    found = groupSettings_.find(plainName(splitNames(name)[0]));
  if (found == groupSettings_.end())
    found = groupSettings_.find(localName(plainName(name)));
  return found != groupSettings_.end() ? &found->second : nullptr;
}

Result<std::optional<PlainValue>> FsdpCheckpoint::setting(std::string_view name,
                                                          const std::string &field) const {
  if (const GroupFields *saved = settingsOf(name))
    if (auto found = saved->find(field); found != saved->end())
      return readGroupField(reader_, found->second);
  return field == "step" ? adamStep(name) : std::optional<PlainValue>();
}

Result<std::optional<PlainValue>> FsdpCheckpoint::adamStep(std::string_view name) const {
  std::string plain = plainName(name);
  for (const std::string &known : {plain, splitNames(plain)[0], localName(plain)}) {
    auto found = adamSteps_.find(known);
    if (found == adamSteps_.end())
      continue;
    float step = 0;
    RETURN_IF_ERROR(reader_.read(found->second->name, {}, Element::F32, &step));
    return std::optional(PlainValue(static_cast<double>(step)));
  }
  return std::optional<PlainValue>();
}

/// Reads the optimizer settings of a parameter. Fields that the run needs must be there; others
/// keep their defaults. The step may be stored with Adam's state instead.
Result<GroupMeta> FsdpCheckpoint::groupMeta(std::string_view name) const {
  const GroupFields *saved = settingsOf(name);
  if (saved == nullptr)
    return makeStatus(report::TensorsMissing,
                      "Parameter {} not found in param_to_group_meta mapping.", name);
  std::map<std::string, PlainValue> fields;
  for (const auto &[fieldName, field] : *saved) {
    ASSIGN_OR_RETURN(std::optional<PlainValue> value, readGroupField(reader_, field));
    if (value) // a field that cannot be read is an error only if it is needed
      fields[fieldName] = std::move(*value);
  }
  if (!fields.contains("step")) {
    ASSIGN_OR_RETURN(std::optional<PlainValue> counted, adamStep(name));
    if (counted)
      fields["step"] = std::move(*counted);
  }
  GroupMeta meta;
  auto number = [&](const char *field, double &value) {
    std::optional<double> got = fields.contains(field) ? fields[field].number() : std::nullopt;
    value = got.value_or(value);
    return got.has_value();
  };
  auto flag = [&](const char *field, bool &value) {
    const bool *got = fields.contains(field) ? fields[field].as<bool>() : nullptr;
    value = got != nullptr ? *got : value;
  };
  double step = 0;
  const auto *betas = fields["betas"].as<PlainTuple>();
  bool isWhole = number("lr", meta.lr) && number("step", step) && number("eps", meta.eps) &&
                 number("weight_decay", meta.weightDecay) &&
                 number("wd_mult", meta.weightDecayMult);
  if (!isWhole || betas == nullptr || betas->items.size() != 2 || !betas->items[0].number() ||
      !betas->items[1].number())
    return makeStatus(
        report::TensorsMissing,
        "the group metadata of '{}' lack one of lr, step, betas, eps, weight_decay, wd_mult", name);
  meta.step = static_cast<int64_t>(step);
  meta.beta1 = *betas->items[0].number();
  meta.beta2 = *betas->items[1].number();
  number("lr_mult", meta.lrMult);
  if (double momentum = 0; number("momentum", momentum))
    meta.momentum = momentum;
  number("max_lr", meta.maxLr);
  number("min_lr", meta.minLr);
  flag("is_expert_parallel", meta.isExpertParallel);
  flag("is_decoupled_lr", meta.isDecoupledLr);
  flag("default_config", meta.defaultConfig);
  flag("bias_correction", meta.biasCorrection);
  return meta;
}

Status loadStatus(const LoadDifferences &report, bool isStrict, int rank, const std::string &folder,
                  std::string_view loader) {
  if (!report.mismatched.empty())
    return makeStatus(report::CheckpointMismatch, "checkpoint '{}' does not fit:{}", folder,
                      listed(report.mismatched));
  if (isStrict && !report.missing.empty()) {
    std::string first = fmt::format("Missing key in checkpoint state_dict: {}.", report.missing[0]);
    return report.missing.size() == 1
               ? makeStatus(report::TensorsMissing, first)
               : makeStatus(report::TensorsMissing, "{} In all {} keys are missing in '{}':{}",
                            first, report.missing.size(), folder, listed(report.missing));
  }
  if (!report.missingWeights.empty())
    return makeStatus(report::TensorsMissing,
                      "{} checkpoint load is incomplete: rank {} requests {} model "
                      "parameter(s) not present in "
                      "the checkpoint at {}, which would silently keep their initialized values.{}",
                      loader, rank, report.missingWeights.size(), folder,
                      listed(report.missingWeights));
  return Status::ok();
}

} // namespace shardc::checkpoint
