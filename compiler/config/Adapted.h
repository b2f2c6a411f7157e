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

/// Whether the layer has a short convolution in place of attention.
inline bool hasShortConv(const Config &config, int64_t layer) {
  constexpr Opt kPattern = Opt::ModelShortConvFreq;
  return config.has(kPattern) && !config.getList(kPattern).empty() &&
         isInPattern(config, kPattern, layer);
}

/// Whether layers of linear_attention_freq have gated delta nets in place of attention.
inline bool hasDeltaNets(const Config &config) {
  constexpr Opt kVariant = Opt::ModelExperimentalAttentionVariant;
  constexpr Opt kPattern = Opt::ModelLinearAttentionFreq;
  return config.has(kPattern) && !config.getList(kPattern).empty() &&
         (config.is(kVariant, AttentionVariant::Gdn) ||
          config.is(kVariant, AttentionVariant::GatedDeltaNet));
}

inline bool hasDeltaNet(const Config &config, int64_t layer) {
  return hasDeltaNets(config) && isInPattern(config, Opt::ModelLinearAttentionFreq, layer);
}

/// Which linear layers the recipe's model has. The configuration must be valid.
inline model::AdaptedModel adaptedModel(const Config &config) {
  const Derived &d = config.derived();
  model::AdaptedModel model;
  model.layers = d.numLayers;
  if (config.has(Opt::ModelShortConvFreq))
    model.hasConv = [&config](int64_t layer) { return hasShortConv(config, layer); };
  model.isDelta = hasDeltaNets(config);
  if (model.isDelta)
    model.hasConv = [&config](int64_t layer) { return hasDeltaNet(config, layer); };
  model.isLatent = config.isOn(Opt::ModelMultiLatentAttention);
  model.compressesQueries = config.has(Opt::ModelQLoraRank);
  model.isGated = d.gated;
  model.hasExperts = config.has(Opt::ModelNumMoeExperts);
  model.hasDense = !model.hasExperts || (config.has(Opt::ModelMoeLayerFreq) &&
                                         !config.getList(Opt::ModelMoeLayerFreq).empty());
  model.hasShared = model.hasExperts && config.has(Opt::ModelMoeSharedExpertIntermediateSize);
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
  const model::AdaptedModel model = adaptedModel(config);
  std::vector<std::string> targets = textsOf(config, Opt::PeftTargets);
  if (!config.has(Opt::PeftTargets)) {
    targets = {"linear_proj", "linear_fc1", "linear_fc2"};
    if (model.isLatent)
      targets.insert(targets.end(), {"linear_kv_down_proj", "linear_kv_up_proj"});
    if (model.isLatent && model.compressesQueries)
      targets.insert(targets.end(), {"linear_q_down_proj", "linear_q_up_proj"});
    else
      targets.push_back(model.isLatent ? "linear_q_proj" : "linear_qkv");
    if (model.hasConv)
      targets.push_back("out_proj");
    if (model.hasConv && !model.isDelta)
      targets.push_back("in_proj");
  }
  return {targets, numbersOf(config, Opt::PeftTargetAlphas), textsOf(config, Opt::PeftExclude),
          model};
}

} // namespace shardc::config
