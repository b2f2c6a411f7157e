// Names of tensors in Megatron's `fsdp_dtensor` checkpoints: the path of a Megatron-Core parameter
// in the nested state dict, the two names of a split gated layer, and other spellings that are
// read.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {

/// The tensors that are saved for a parameter. Model tensors contain the master weights.
enum class ParamPart : uint8_t { Weight, ExpAvg, ExpAvgSq, Momentum };
inline constexpr ParamPart kParamParts[] = {ParamPart::Weight, ParamPart::ExpAvg,
                                            ParamPart::ExpAvgSq, ParamPart::Momentum};
std::string_view momentName(ParamPart part); ///< such as `exp_avg`; empty for the weight

/// The precision of a run with Megatron FSDP. Optimizer entries name every module around the model:
/// Megatron's adapter, Megatron-FSDP and, except in fp32, the module for bf16 and fp16.
enum class FsdpPrecision : uint8_t { Half, Fp32 };
std::string_view fsdpWrappers(FsdpPrecision precision); ///< `module.module.module.`, fp32: one less

/// The path of a tensor: `model` / `module.<name>`, or
/// `optimizer` / `state` / `module.module.module.<name>` / `exp_avg`.
ItemPath tensorPath(std::string_view name, ParamPart part,
                    FsdpPrecision precision = FsdpPrecision::Half);
/// The path of torch's own Adam's update count: `optimizer` / `state` /
/// `module.module.module.<name>` / `step`.
ItemPath adamStepPath(std::string_view name, FsdpPrecision precision = FsdpPrecision::Half);
/// The path of a setting: `optimizer` / `param_to_group_meta` / `module.module.module.<name>` /
/// `field`.
ItemPath groupMetaPath(std::string_view name, std::string_view field,
                       FsdpPrecision precision = FsdpPrecision::Half);

/// Whether a parameter belongs to the first layer of an MLP, which is saved as two tensors if it is
/// gated: weight or bias of `mlp.linear_fc1`, also of experts (grouped or sequential) and of shared
/// experts.
bool isGateable(std::string_view name);
/// The two names under which a gated parameter is saved, gate (`_w`) first.
std::array<std::string, 2> splitNames(std::string_view name);

/// The parameter to which a key of a checkpoint belongs, with its plain name: without prefixes
/// `module.`, `model.` and empty segments, and with `transformer_layer` instead of
/// `mtp_model_layer`.
struct ParamKey {
  std::string name;
  ParamPart part = ParamPart::Weight;
};
/// Parses a tensor's key; nothing if it does not belong to a parameter.
std::optional<ParamKey> parseTensorKey(std::string_view key);
/// The plain name of a parameter.
std::string plainName(std::string_view name);

/// The name of a norm in Megatron's local layer specification. Other specifications include the
/// norm in the following linear layer: `input_layernorm.weight` corresponds to
/// `self_attention.linear_qkv.layer_norm_weight`, and `pre_mlp_layernorm.weight` to
/// `mlp.linear_fc1.layer_norm_weight`. Empty for all other names.
std::string localName(std::string_view plain);

/// An entry of `param_to_group_meta`: the parameter's name, and the name of one of its settings.
struct GroupMetaKey {
  std::string name, field;
};
/// Parses the key of such an entry; nothing for other keys.
std::optional<GroupMetaKey> parseGroupMetaKey(std::string_view key);
/// The plain name of the parameter if the key is that of an update count of torch's own Adam;
/// otherwise nothing.
std::optional<std::string> parseAdamStepKey(std::string_view key);

} // namespace shardc::checkpoint
