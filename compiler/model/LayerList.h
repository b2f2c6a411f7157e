// Lists that say something of each layer in the order of the layers: what the backward pass
// recomputes (`model.recompute_layers`), and what lies in the host's memory until then
// (`model.offload_layers`).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/Job.h"

namespace shardc::model {

using RecomputeModule = plan::Job::RecomputeModule;
using OffloadModule = plan::Job::OffloadModule;

/// What a list names of a layer: everything, or some of its modules.
struct LayerParts {
  bool isFull = false;
  uint32_t modules = 0; ///< a bit for each module of the list's enumeration; 0 if isFull

  template <typename Module> bool has(Module module) const {
    return (modules >> static_cast<int>(module) & 1) != 0;
  }
  bool isNothing() const { return !isFull && modules == 0; }
  bool operator==(const LayerParts &) const = default;
};

/// The words of a list: for a whole layer, and the field of the job whose words name its modules.
struct LayerWords {
  std::string_view whole;
  plan::JobField modules;
};
inline constexpr LayerWords kRecomputeWords = {"full", plan::JobField::model_recomputeModules},
                            kOffloadWords = {"all", plan::JobField::model_offloadModules};

/// What each layer has in the list, in order.
struct LayerList {
  std::vector<LayerParts> layers;
  std::string problem; ///< the reason why the text is invalid; empty if it is valid

  bool isValid() const { return problem.empty(); }
};

/// Parses entries such as `6*full`, `2*core_attn+layernorm` or `none`: a number of consecutive
/// layers (one if omitted), and what the list names of them. The numbers must add up to `layers`.
LayerList readLayerList(std::span<const std::string> entries, int64_t layers,
                        const LayerWords &words = kRecomputeWords);

/// The entry for `count` layers.
std::string layerEntry(int64_t count, LayerParts layer, const LayerWords &words);
/// The shortest list of entries for these layers.
std::vector<std::string> layerListText(std::span<const LayerParts> layers,
                                       const LayerWords &words = kRecomputeWords);

} // namespace shardc::model
