// The matrices that Muon takes of a parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/model/Module.h"

namespace shardc::lower {

/// The rows of the matrices that Muon takes of a parameter, as Param::turns has them. Empty if it
/// is one matrix.
inline std::vector<int64_t> turnsOf(const config::Config &config, const model::ParamSpec &spec) {
  const bool isByHead = config.isOn(config::Opt::OptimizerMuonSplitQkvPerHead);
  auto numberOf = [&](config::Opt option) { return config.getInt(option); };
  if (spec.kind == model::ParamKind::Qkv) {
    int64_t heads = numberOf(config::Opt::ModelNumAttentionHeads),
            channels = numberOf(config::Opt::ModelKvChannels);
    int64_t groups = config.getIntOr(config::Opt::ModelNumQueryGroups, heads);
    if (isByHead)
      return {-channels};
    if (config.isOn(config::Opt::OptimizerMuonSplitQkv))
      return {heads / groups * channels, channels, channels};
  }
  if (isByHead && spec.name.ends_with("linear_kv_up_proj.weight"))
    return {-numberOf(config::Opt::ModelQkHeadDim), -numberOf(config::Opt::ModelVHeadDim)};
  if (isByHead && (spec.name.ends_with("linear_q_up_proj.weight") ||
                   spec.name.ends_with("linear_q_proj.weight")))
    return {-numberOf(config::Opt::ModelQkHeadDim) - numberOf(config::Opt::ModelQkPosEmbHeadDim)};
  if (config.isOn(config::Opt::OptimizerMuonSplitFc1) && config.derived().gated &&
      spec.name.ends_with("linear_fc1.weight"))
    return {0, 0};
  return {};
}

} // namespace shardc::lower
