// The linear layers of a recipe's model, by the names that adapters use.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/model/Adapters.h"

namespace shardc::config {

/// Whether a pattern names the layer. It is a number n, for all layers but every n-th counted from
/// 1, or a list with 1 for each such layer and 0 for others.
inline bool isInPattern(const Config &config, Opt option, int64_t layer) {
  const Value::List &pattern = config.getList(option);
  if (pattern.size() == 1)
    return (layer + 1) % std::max<int64_t>(*pattern.front().asInt(), 1) != 0;
  return *pattern[static_cast<size_t>(layer) % pattern.size()].asInt() != 0;
}

/// Whether a pattern that may be unset names the layer.
inline bool isInList(const Config &config, Opt option, int64_t layer) {
  return config.has(option) && !config.getList(option).empty() &&
         isInPattern(config, option, layer);
}

/// Whether layers of linear_attention_freq have gated delta nets in place of attention.
inline bool hasDeltaNets(const Config &config) {
  constexpr Opt kVariant = Opt::ModelExperimentalAttentionVariant;
  return config.is(kVariant, AttentionVariant::Gdn) ||
         config.is(kVariant, AttentionVariant::GatedDeltaNet);
}

/// The heads of a Mamba-2 mixer: by default, their channels are twice as many as the hidden ones.
inline int64_t mambaHeads(const Config &config) {
  return config.getIntOr(Opt::ModelMambaNumHeads,
                         2 * config.derived().hidden / config.getInt(Opt::ModelMambaHeadDim));
}

/// The parts of a layer: one for the symbol of hybrid_layer_pattern, or a mixer and a feed-forward
/// part. moe_layer_freq is a number n, for every n-th layer, or a list of 0 and 1.
inline model::LayerForm partsOf(const Config &config, int64_t layer) {
  using model::FeedForward, model::Mixer;
  const Mixer attention =
      config.isOn(Opt::ModelMultiLatentAttention) ? Mixer::Latent : Mixer::Attention;
  if (config.has(Opt::ModelHybridLayerPattern)) {
    const std::string &symbols = config.getString(Opt::ModelHybridLayerPattern);
    switch (layer < std::ssize(symbols) ? symbols[static_cast<size_t>(layer)] : '-') {
    case 'M':
      return {Mixer::Mamba, FeedForward::None};
    case '*':
      return {attention, FeedForward::None};
    case 'E':
      return {Mixer::None, FeedForward::Experts};
    default:
      return {Mixer::None, FeedForward::Dense};
    }
  }
  model::LayerForm parts = {attention, FeedForward::Dense};
  if (isInList(config, Opt::ModelShortConvFreq, layer))
    parts.mixer = Mixer::ShortConv;
  else if (hasDeltaNets(config) && isInList(config, Opt::ModelLinearAttentionFreq, layer))
    parts.mixer = Mixer::DeltaNet;
  if (!config.has(Opt::ModelNumMoeExperts))
    return parts;
  const Value::List none,
      &pattern = config.has(Opt::ModelMoeLayerFreq) ? config.getList(Opt::ModelMoeLayerFreq) : none;
  const int64_t every = pattern.empty() ? 1 : *pattern.front().asInt();
  if (pattern.empty() || (pattern.size() == 1 && every > 1
                              ? layer % every == 0
                              : *pattern[static_cast<size_t>(layer) % pattern.size()].asInt() != 0))
    parts.feedForward = FeedForward::Experts;
  return parts;
}

/// Maximum number of layers whose parts are determined one by one.
constexpr int64_t kLayersMax = 1'000'000;

/// Which linear layers the recipe's model has. The configuration must be valid.
inline model::AdaptedModel adaptedModel(const Config &config) {
  model::AdaptedModel model;
  for (int64_t i = 0; i < std::min(config.derived().numLayers, kLayersMax); ++i)
    model.layers.push_back(partsOf(config, i));
  model.compressesQueries = config.has(Opt::ModelQLoraRank);
  model.isGated = config.derived().gated;
  model.hasShared = config.has(Opt::ModelMoeSharedExpertIntermediateSize);
  return model;
}

/// The entries of a list of texts; empty if the option is not set.
inline std::vector<std::string> textsOf(const Config &config, Opt list) {
  std::vector<std::string> texts;
  if (config.has(list))
    for (const Value &entry : config.getList(list))
      texts.push_back(*entry.asString());
  return texts;
}

/// The entries of a list of numbers; empty if the option is not set.
inline std::vector<double> numbersOf(const Config &config, Opt list) {
  std::vector<double> numbers;
  if (config.has(list))
    for (const Value &entry : config.getList(list))
      numbers.push_back(*entry.asFloat());
  return numbers;
}

/// The layers that a recipe selects for its adapters: `peft.targets` without `peft.exclude`. By
/// default, those of attention and of feed-forward layers.
inline model::AdapterTargets adapterTargets(const Config &config) {
  using model::FeedForward, model::Mixer;
  const model::AdaptedModel model = adaptedModel(config);
  std::vector<std::string> targets = textsOf(config, Opt::PeftTargets);
  if (!config.has(Opt::PeftTargets)) {
    const bool isLatent = model.has(Mixer::Latent), isPlain = model.has(Mixer::Attention);
    if (isLatent || isPlain)
      targets.push_back("linear_proj");
    if (model.has(FeedForward::Dense) || model.has(FeedForward::Experts))
      targets.insert(targets.end(), {"linear_fc1", "linear_fc2"});
    if (isLatent)
      targets.insert(targets.end(), {"linear_kv_down_proj", "linear_kv_up_proj"});
    if (isLatent && model.compressesQueries)
      targets.insert(targets.end(), {"linear_q_down_proj", "linear_q_up_proj"});
    else if (isLatent || isPlain)
      targets.push_back(isLatent ? "linear_q_proj" : "linear_qkv");
    if (model.has(Mixer::ShortConv) || model.has(Mixer::DeltaNet) || model.has(Mixer::Mamba))
      targets.push_back("out_proj");
    if (model.has(Mixer::ShortConv))
      targets.push_back("in_proj");
  }
  return {targets, numbersOf(config, Opt::PeftTargetAlphas), textsOf(config, Opt::PeftExclude),
          model};
}

} // namespace shardc::config
