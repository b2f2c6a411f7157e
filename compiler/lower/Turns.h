// Divides parameters into the matrices that Muon updates.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/model/Module.h"

namespace shardc::lower {

/// The numbers of rows of the matrices that Muon updates in a parameter, in the form of
/// Param::turns. Empty if the parameter is one matrix.
inline std::vector<int64_t> turnsOf(const config::Config &config, const model::ParamSpec &spec) {
  using config::Opt;
  const bool isByHead = config.isOn(Opt::OptimizerMuonSplitQkvPerHead);
  auto isOf = [&](std::string_view layer) { return spec.name.ends_with(layer); };
  if (spec.kind == model::ParamKind::Qkv) {
    int64_t heads = config.getInt(Opt::ModelNumAttentionHeads),
            channels = config.getInt(Opt::ModelKvChannels);
    if (isByHead)
      return {-channels};
    const int64_t queries = heads / config.getIntOr(Opt::ModelNumQueryGroups, heads) * channels;
    if (config.isOn(Opt::OptimizerMuonSplitQkv) && config.isOn(Opt::ModelAttentionOutputGate))
      return {queries, queries, channels, channels};
    if (config.isOn(Opt::OptimizerMuonSplitQkv))
      return {queries, channels, channels};
  }
  if (isByHead && isOf("linear_kv_up_proj.weight"))
    return {-config.getInt(Opt::ModelQkHeadDim), -config.getInt(Opt::ModelVHeadDim)};
  if (isByHead && (isOf("linear_q_up_proj.weight") || isOf("linear_q_proj.weight")))
    return {-config.getInt(Opt::ModelQkHeadDim) - config.getInt(Opt::ModelQkPosEmbHeadDim)};
  if (config.isOn(Opt::OptimizerMuonSplitFc1) && config.derived().gated &&
      isOf("linear_fc1.weight"))
    return {0, 0};
  return {};
}

} // namespace shardc::lower
