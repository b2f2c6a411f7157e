// The parts of each layer that the backward pass recomputes (`model.recompute_granularity = auto`).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Job.h"

namespace shardc::model {

using RecomputeModule = plan::Job::RecomputeModule;

/// The part of a layer that is recomputed: the whole layer, or some of its modules.
struct LayerRecompute {
  bool isFull = false;
  uint32_t modules = 0; ///< a bit for each RecomputeModule; 0 if isFull

  bool has(RecomputeModule module) const { return (modules >> static_cast<int>(module) & 1) != 0; }
  bool isNothing() const { return !isFull && modules == 0; }
  bool operator==(const LayerRecompute &) const = default;
};

/// What each layer recomputes, in order.
struct RecomputeLayers {
  std::vector<LayerRecompute> layers;
  std::string problem; ///< the reason why the text is invalid; empty if it is valid

  bool isValid() const { return problem.empty(); }
};

/// Parses entries such as `6*full`, `2*core_attn+layernorm` or `none`: a number of consecutive
/// layers (one if omitted), and what they recompute. The numbers must add up to `layers`.
RecomputeLayers readRecomputeLayers(std::span<const std::string> entries, int64_t layers);

/// The shortest list of entries for these layers.
std::vector<std::string> recomputeLayersText(std::span<const LayerRecompute> layers);

} // namespace shardc::model
