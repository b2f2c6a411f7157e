#include "runtime/checkpoint/FsdpNames.h"

#include <utility>

#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kStatePrefix = "optimizer.state.";
constexpr std::string_view kAdamStep = "step";
constexpr std::string_view kGroupMetaPrefix = "optimizer.param_to_group_meta.";

/// Removes and returns the last dotted segment.
std::string_view takeLast(std::string_view &text) {
  size_t dot = text.rfind('.');
  std::string_view last = dot == std::string_view::npos ? text : text.substr(dot + 1);
  text = dot == std::string_view::npos ? std::string_view() : text.substr(0, dot);
  return last;
}

bool isSegment(std::string_view &text, std::string_view expected) {
  std::string_view rest = text;
  if (takeLast(rest) != expected)
    return false;
  text = rest;
  return true;
}

/// Removes leading `module.`, `model.` and empty segments.
std::string_view withoutWrappers(std::string_view name) {
  while (true) {
    if (name.starts_with("module."))
      name.remove_prefix(7);
    else if (name.starts_with("model."))
      name.remove_prefix(6);
    else if (name.starts_with("."))
      name.remove_prefix(1);
    else
      return name;
  }
}

} // namespace

std::string_view momentName(ParamPart part) {
  switch (part) {
  case ParamPart::Weight:
    return "";
  case ParamPart::ExpAvg:
    return "exp_avg";
  case ParamPart::ExpAvgSq:
    return "exp_avg_sq";
  case ParamPart::Momentum: // of SGD
    return "momentum_buffer";
  }
  return "";
}

std::string_view fsdpWrappers(FsdpPrecision precision) {
  return precision == FsdpPrecision::Fp32 ? "module.module." : "module.module.module.";
}

ItemPath tensorPath(std::string_view name, ParamPart part, FsdpPrecision precision) {
  if (part == ParamPart::Weight)
    return {"model", fmt::format("module.{}", name)};
  return {"optimizer", "state", fmt::format("{}{}", fsdpWrappers(precision), name),
          std::string(momentName(part))};
}

ItemPath adamStepPath(std::string_view name, FsdpPrecision precision) {
  return {"optimizer", "state", fmt::format("{}{}", fsdpWrappers(precision), name),
          std::string(kAdamStep)};
}

ItemPath groupMetaPath(std::string_view name, std::string_view field, FsdpPrecision precision) {
  return {"optimizer", "param_to_group_meta", fmt::format("{}{}", fsdpWrappers(precision), name),
          std::string(field)};
}

bool isGateable(std::string_view name) {
  std::string_view rest = name, last = takeLast(rest);
  for (std::string_view kind : {"weight", "bias"}) {
    if (!last.starts_with(kind))
      continue;
    std::string_view expert = last.substr(kind.size()), path = rest;
    if (!isSegment(path, "linear_fc1"))
      return false;
    if (!expert.empty()) // grouped experts, such as weight7
      return isNumber(expert) && isSegment(path, "experts") && isSegment(path, "mlp");
    if (isSegment(path, "mlp"))
      return true;
    if (isSegment(path, "shared_experts"))
      return isSegment(path, "mlp");
    std::string_view index = takeLast(path); // sequential experts, such as local_experts.7
    return isNumber(index) && isSegment(path, "local_experts") && isSegment(path, "experts") &&
           isSegment(path, "mlp");
  }
  return false;
}

std::array<std::string, 2> splitNames(std::string_view name) {
  return {fmt::format("{}_w", name), fmt::format("{}_v", name)};
}

std::string plainName(std::string_view name) {
  std::string plain(withoutWrappers(name));
  constexpr std::string_view kOld = ".mtp_model_layer.", kOnDisk = ".transformer_layer.";
  if (size_t at = plain.find(kOld); plain.starts_with("mtp.") && at != std::string::npos)
    plain.replace(at, kOld.size(), kOnDisk);
  return plain;
}

std::string localName(std::string_view plain) {
  constexpr std::pair<std::string_view, std::string_view> kNorms[] = {
      {".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
      {".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."}};
  for (const auto &[fused, local] : kNorms)
    if (size_t at = plain.find(fused); at != std::string_view::npos)
      return fmt::format("{}{}{}", plain.substr(0, at), local, plain.substr(at + fused.size()));
  return "";
}

std::optional<ParamKey> parseTensorKey(std::string_view key) {
  if (key.starts_with(kStatePrefix)) {
    std::string_view name = key.substr(kStatePrefix.size()), moment = takeLast(name);
    for (ParamPart part : {ParamPart::ExpAvg, ParamPart::ExpAvgSq, ParamPart::Momentum})
      if (moment == momentName(part))
        return ParamKey{plainName(name), part};
    return std::nullopt;
  }
  size_t dot = key.find('.');
  std::string_view section = key.substr(0, dot);
  bool isModel =
      section.starts_with("model") && (section.size() == 5 || isNumber(section.substr(5)));
  if (!isModel || dot == std::string_view::npos)
    return std::nullopt;
  return ParamKey{plainName(key.substr(dot + 1)), ParamPart::Weight};
}

std::optional<GroupMetaKey> parseGroupMetaKey(std::string_view key) {
  if (!key.starts_with(kGroupMetaPrefix))
    return std::nullopt;
  std::string_view name = key.substr(kGroupMetaPrefix.size()), field = takeLast(name);
  return GroupMetaKey{plainName(name), std::string(field)};
}

std::optional<std::string> parseAdamStepKey(std::string_view key) {
  if (!key.starts_with(kStatePrefix))
    return std::nullopt;
  std::string_view name = key.substr(kStatePrefix.size());
  if (takeLast(name) != kAdamStep || name.empty())
    return std::nullopt;
  return plainName(name);
}

} // namespace shardc::checkpoint
