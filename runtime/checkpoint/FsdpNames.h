// Names of tensors in Megatron's `fsdp_dtensor` checkpoints: where a parameter called by its
// Megatron-Core name lies in the nested state dict, how gated layers are split in two, and the
// other spellings that are read.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {

/// The tensors that are saved of a parameter. Model tensors hold the master weights.
enum class ParamPart : uint8_t { Weight, ExpAvg, ExpAvgSq, Momentum };
inline constexpr ParamPart kParamParts[] = {ParamPart::Weight, ParamPart::ExpAvg,
                                            ParamPart::ExpAvgSq, ParamPart::Momentum};
std::string_view momentName(ParamPart part); ///< `exp_avg`; empty for the weight

/// The precision of a run under Megatron FSDP. The optimizer's entries name every module around the
/// model: Megatron's adapter, Megatron-FSDP and, unless in fp32, the module of bf16 and fp16.
enum class FsdpPrecision : uint8_t { Half, Fp32 };
std::string_view fsdpWrappers(FsdpPrecision precision); ///< `module.module.module.`, fp32: one less

/// The path of a tensor: `model` / `module.<name>`, or
/// `optimizer` / `state` / `module.module.module.<name>` / `exp_avg`.
ItemPath tensorPath(std::string_view name, ParamPart part,
                    FsdpPrecision precision = FsdpPrecision::Half);
/// The count of torch's own Adam: `optimizer` / `state` / `module.module.module.<name>` / `step`.
ItemPath adamStepPath(std::string_view name, FsdpPrecision precision = FsdpPrecision::Half);
/// `optimizer` / `param_to_group_meta` / `module.module.module.<name>` / `field`.
ItemPath groupMetaPath(std::string_view name, std::string_view field,
                       FsdpPrecision precision = FsdpPrecision::Half);

/// Whether a parameter is the first layer of an MLP, which gated layers save as two tensors: weight
/// or bias of `mlp.linear_fc1`, of experts (grouped or sequential) and of shared experts.
bool isGateable(std::string_view name);
/// The two names that a gated parameter is saved under, gate (`_w`) first.
std::array<std::string, 2> splitNames(std::string_view name);

/// The parameter that a key of a checkpoint names, in its plain spelling: without prefixes
/// `module.`, `model.` and empty segments, and with `transformer_layer` for `mtp_model_layer`.
struct ParamKey {
  std::string name;
  ParamPart part = ParamPart::Weight;
};
/// Parses a tensor's key; nothing if it does not belong to a parameter.
std::optional<ParamKey> parseTensorKey(std::string_view key);
/// The plain spelling of a parameter's name.
std::string plainName(std::string_view name);

/// The name of a norm in Megatron's local layer specification. Other specifications have the norm
/// inside of the following linear layer: `input_layernorm.weight` for
/// `self_attention.linear_qkv.layer_norm_weight`, `pre_mlp_layernorm.weight` for
/// `mlp.linear_fc1.layer_norm_weight`. Empty for all other names.
std::string localName(std::string_view plain);

struct GroupMetaKey {
  std::string name, field;
};
std::optional<GroupMetaKey> parseGroupMetaKey(std::string_view key);
/// The name of the parameter, plain spelling, if the key is of the count that torch's own Adam
/// keeps with its moments.
std::optional<std::string> parseAdamStepKey(std::string_view key);

} // namespace shardc::checkpoint
