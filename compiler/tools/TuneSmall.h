// A small model that stands for one with more layers of the same kinds: the costs of a body come
// from a few layers instead of all.
#pragma once

#include "compiler/tools/TuneEstimate.h"

namespace shardc::tools {

/// A choice of layers, and for each layer of the whole model the one that stands for it.
class SmallModel {
public:
  /// Selects layers of a whole model by their costs: the first and the last one, each layer with
  /// another cost, and its neighbours. `config` says which layers have experts, windows and
  /// positions.
  SmallModel(const BodyCost &whole, const config::Config &config);

  /// Whether it has fewer layers.
  bool isSmaller() const { return layers_.size() < standIns_.size(); }
  /// The settings of a layout for the small model, which has no stages.
  std::vector<std::string> sets(const Layout &layout, const TuneSizes &sizes) const;
  /// The costs of the whole model; empty if `cost` does not have the small model's number of
  /// layers.
  std::optional<BodyCost> grown(BodyCost cost) const;

private:
  std::vector<size_t> layers_;        ///< indices in the whole model
  std::vector<size_t> standIns_;      ///< by layer of the whole model: the index of its stand-in
  std::vector<std::string> patterns_; ///< settings of options that differ between layers
};

} // namespace shardc::tools
