// The small model that stands for one with more layers of the same kinds: a body's costs come from
// a few layers instead of all.
#pragma once

#include "compiler/tools/TuneBound.h"

namespace shardc::tools {

class SmallModel {
public:
  /// Of a whole model's costs: the first and last layer, and each layer of another cost or beside
  /// one. `config` says which layers have experts, windows and positions.
  SmallModel(const BodyCost &whole, const config::Config &config);

  /// Whether it has fewer layers.
  bool isSmaller() const { return layers_.size() < standIns_.size(); }
  /// The settings of a layout for it, which is not cut into stages.
  std::vector<std::string> sets(const Layout &layout, const TuneSizes &sizes) const;
  /// The costs of the whole model; nothing if `cost` is of another number of layers.
  std::optional<BodyCost> grown(BodyCost cost) const;

private:
  std::vector<size_t> layers_;        ///< of the whole model, those that it has
  std::vector<size_t> standIns_;      ///< by layer of the whole model, one of its own
  std::vector<std::string> patterns_; ///< settings of what differs between layers
};

} // namespace shardc::tools
