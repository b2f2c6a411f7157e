// Estimates of a layout's step time and memory without compiling the layout. They order the search,
// and compiled plans tell how far to trust them. Costs of ops come from the body before it is split
// into stages, which many layouts share.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "compiler/model/Stages.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/TuneSpace.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Seconds of a part of the model for one microbatch and direction.
struct PassCost {
  double fixed = 0;     ///< kernels whose rate does not depend on the power factor
  double scaled = 0;    ///< other kernels, at factor 1
  double transfers = 0; ///< collectives for which kernels wait

  double kernels(double factor) const { return fixed + scaled / factor; }
  PassCost &operator+=(const PassCost &other);
  bool operator==(const PassCost &) const = default;
};

/// What a part of the model holds: numbers of trained parameters, and bytes of frozen ones.
struct Held {
  int64_t trained = 0, frozenBytes = 0;

  bool isEmpty() const { return trained == 0 && frozenBytes == 0; }
  Held &operator+=(const Held &other);
  bool operator==(const Held &) const = default;
};

/// The cost of a layer, or of the head.
struct PartCost {
  PassCost forward, backward;
  PassCost inputs;       ///< of the backward pass, the part for which earlier layers wait
  double products = 0;   ///< seconds of matrix products, both directions, at factor 1
  int64_t keptBytes = 0; ///< activations kept from forward to backward pass
  Held dense, experts;   ///< divided among data-parallel ranks, among ranks with equal experts

  bool operator==(const PartCost &) const = default;
};

/// Bytes of an element: of weights, of gathered ones, of sent gradients, of their sums, and of
/// master weights and moments together. They depend on how a layout is sharded.
struct ElementBytes {
  int64_t weights = 0, gathered = 0, gradients = 0, sums = 0, state = 0;
  bool dividesInstances = true; ///< instances shard their gradients instead of summing them
};

/// What estimates need to know of a body: its layers, its head and its embedding.
struct BodyCost {
  std::vector<PartCost> layers;
  PartCost head;
  Held embedding;
  int64_t momentBytes = 0;               ///< bytes of an element's moments, lower bound
  bool reducesOnce = false;              ///< whole gradients are reduced once per step
  bool overlapsPasses = false;           ///< of two microbatches
  bool movesPieces = false;              ///< transfers of pieces of rows overlap products
  bool keepsFrozen = false;              ///< frozen weights are replicated, at least if that fits
  bool dividesFrozen = true;             ///< frozen weights are sharded, unless they fit whole
  std::optional<predict::Device> device; ///< for predictions
  model::StageRequest times;             ///< for balanced splits into stages

  bool hasSameParts(const BodyCost &other) const {
    return layers == other.layers && head == other.head && times.seconds == other.times.seconds;
  }
};

/// The costs of a plan of the whole model, before it is split into stages.
BodyCost costOfBody(const plan::Plan &body);

/// Estimated seconds of a step, and bytes of the rank that needs the most.
struct Estimate {
  double seconds = 0;
  int64_t bytes = 0;
};

/// The estimates of all layouts of one body.
class Estimates {
public:
  /// `elements`: the bytes of an element for each mesh.
  Estimates(const BodyCost &cost, const Layout &body, const TuneSizes &sizes,
            std::function<ElementBytes(const Layout &mesh)> elements);

  /// Whether the layers can be divided among the stages and chunks of the mesh.
  bool divides(const Layout &mesh) { return !divide(mesh).layers.empty(); }
  /// The number of layers of each chunk. This function and the next ones need a preceding call of
  /// divides() for the mesh that returned true; they are thread-safe.
  const std::vector<int64_t> &layersOf(const Layout &mesh) const;
  /// The seconds of a step, if recomputation adds these seconds to a microbatch of each stage.
  double secondsOf(const Layout &mesh, const std::vector<double> &added = {}) const;
  int64_t bytesOf(const Layout &mesh) const;

private:
  /// Layouts with equal stages, chunks and split share a division.
  struct Division {
    std::vector<int64_t> layers;             ///< by chunk
    std::vector<std::vector<double>> counts; ///< by stage: number of parts of each kind
  };
  const Division &divide(const Layout &mesh);
  double secondsAt(double factor, const Layout &mesh, const std::vector<double> &added) const;

  const BodyCost &cost_;
  const Layout &body_;
  const TuneSizes &sizes_;
  const std::function<ElementBytes(const Layout &mesh)> elements_;
  std::vector<PartCost> kinds_;               ///< distinct kinds of layers, then the head
  std::vector<size_t> kindOf_;                ///< by layer, its index in kinds_
  double products_ = 0;                       ///< seconds of matrix products of a microbatch
  std::map<std::string, Division> divisions_; ///< by stages, chunks and split
};

} // namespace shardc::tools
