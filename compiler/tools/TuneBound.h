// What a layout takes at least, without compiling it: seconds of a step and bytes of a device. A
// bound is never above what the plan then takes, so a layout whose bound is beyond what was found
// needs no plan. The ops of layers are those of the finished body, which layouts share.
#pragma once

#include <map>

#include "compiler/model/Stages.h"
#include "compiler/tools/TuneSpace.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Least seconds of a part of the model for one microbatch, and what it holds on a rank.
struct PartCost {
  double forward = 0, backward = 0;
  /// From the first gradient that it takes to the last one that it passes on: backward without the
  /// gradients of weights that nobody waits for.
  double passing = 0;
  double recomputed = 0; ///< of backward, what makes activations again
  int64_t keptBytes = 0; ///< from the forward to the backward pass
  int64_t numel = 0;     ///< parameters

  double both() const { return forward + backward; }
};

struct BodyCost {
  std::vector<PartCost> layers;
  PartCost head;
  int64_t embeddingNumel = 0;
  /// Bytes of an element: of weights, gradients, and master weights and moments together.
  int64_t weightBytes = 0, gradientBytes = 0, stateBytes = 0;
  model::StageRequest times; ///< by which balanced stages are divided
};

/// Of a plan of the whole model, before it is cut into stages.
BodyCost costOfBody(const plan::Plan &body);

/// Seconds of a step, and bytes of the rank that needs most.
struct Bound {
  double seconds = 0;
  int64_t bytes = 0;
};

/// The bounds of a body's layouts. What they share is computed once.
class Bounds {
public:
  Bounds(const BodyCost &cost, const Layout &body, const TuneSizes &sizes)
      : cost_(cost), body_(body), sizes_(sizes) {}

  /// Of one of its meshes that divides the batch.
  Bound of(const Layout &mesh);

private:
  const std::vector<int64_t> &layersOf(const Layout &mesh);
  double secondsOf(const Layout &mesh);

  const BodyCost &cost_;
  const Layout &body_;
  const TuneSizes &sizes_;
  std::map<std::string, std::vector<int64_t>> layers_; ///< of each chunk, by stages and division
  std::map<std::string, double> seconds_;              ///< by these and the schedule
};

} // namespace shardc::tools
