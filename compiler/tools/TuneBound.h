// What a layout takes at least, without compiling it: seconds of a step and bytes of a device. A
// bound is never above what the plan then takes, so a layout whose bound is beyond what was found
// needs no plan. The ops of layers are those of the finished body, which layouts share.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "compiler/model/Stages.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/TuneSpace.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Seconds that depend on what power leaves of the rates of products.
struct PowerSeconds {
  double fixed = 0;
  double scaled = 0; ///< at the factor 1; in inverse proportion to it
  double capped = 0; ///< likewise, but a factor above 1 does not help

  double at(double factor) const {
    return fixed + scaled / factor + capped / std::min(factor, 1.0);
  }
  PowerSeconds &operator+=(const PowerSeconds &other);
  bool operator==(const PowerSeconds &) const = default;
};

/// Of a part of the model, for one microbatch and one direction.
struct PassCost {
  PowerSeconds compute;  ///< kernels
  PowerSeconds chain;    ///< the longest one of kernels and collectives that wait for each other
  double transfers = 0;  ///< of the collectives between its parts
  double contending = 0; ///< what these cost kernels if all of them overlap some

  /// At least, at a factor of power.
  double at(double factor) const;
  bool operator==(const PassCost &) const = default;
};

/// Least seconds of a part of the model for one microbatch, and what it holds on a rank.
struct PartCost {
  PassCost forward, backward;
  double products = 0;     ///< seconds of products of both, at the factor 1
  double recomputed = 0;   ///< seconds of backward, what makes activations again
  int64_t keptBytes = 0;   ///< from the forward to the backward pass
  int64_t numel = 0;       ///< parameters that data-parallel ranks share
  int64_t expertNumel = 0; ///< those of its experts

  double both(double factor) const { return forward.at(factor) + backward.at(factor); }
  /// From the first gradient that it takes to the last one that it passes on: backward without the
  /// gradients of weights that nobody waits for.
  double passing(double factor) const {
    return std::min(backward.chain.at(factor), backward.compute.at(factor));
  }
  bool operator==(const PartCost &) const = default;
};

struct BodyCost {
  std::vector<PartCost> layers;
  PartCost head;
  int64_t embeddingNumel = 0;
  /// Bytes of an element: of weights, gradients, and master weights and moments together.
  int64_t weightBytes = 0, gradientBytes = 0, stateBytes = 0;
  int64_t gatheredBytes = 0;             ///< of an element of a weight that is gathered
  std::optional<predict::Device> device; ///< that runs it
  model::StageRequest times;             ///< by which balanced stages are divided

  bool hasSameParts(const BodyCost &other) const {
    return layers == other.layers && head == other.head && times.seconds == other.times.seconds;
  }
};

/// Of a plan of the whole model, before it is cut into stages.
BodyCost costOfBody(const plan::Plan &body);

/// That of a model with so many layers, of one whose layers between the first and the last are
/// alike.
BodyCost withLayers(BodyCost cost, int64_t layers);

/// Most bytes of the weights and gradients that a rank has whole for a while, of one layer after
/// the other: by these the memory of layouts differs that share all else but state.
int64_t passingBytes(const BodyCost &cost);

/// Seconds of a step, and bytes of the rank that needs most.
struct Bound {
  double seconds = 0;
  int64_t bytes = 0;
};

/// The bounds of a body's layouts. What they share is computed once.
class Bounds {
public:
  Bounds(const BodyCost &cost, const Layout &body, const TuneSizes &sizes);

  /// Of one of its meshes that divides the batch.
  Bound of(const Layout &mesh);

private:
  struct Passes;
  const std::vector<int64_t> &layersOf(const Layout &mesh);
  const Passes &passesOf(const Layout &mesh);
  double secondsOf(const Layout &mesh);

  const BodyCost &cost_;
  const Layout &body_;
  const TuneSizes &sizes_;
  std::vector<PartCost> kinds_;                           ///< layers that differ
  std::vector<size_t> kindOf_;                            ///< of each layer
  std::map<std::string, std::vector<int64_t>> layers_;    ///< of each chunk, by stages and division
  std::map<std::string, std::shared_ptr<Passes>> passes_; ///< by these and the schedule
};

} // namespace shardc::tools
