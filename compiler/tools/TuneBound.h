// Lower bounds of a layout's step time and memory, without compiling the layout. A bound never
// exceeds the value of the compiled plan, so a layout whose bound is worse than the best plan so
// far need not be compiled. Costs of ops come from the body before it is split into stages, which
// many layouts share.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "compiler/model/Stages.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/TuneSpace.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// Seconds as a function of the power factor, which scales the rates of products.
struct PowerSeconds {
  double fixed = 0;
  double scaled = 0; ///< at factor 1; inversely proportional to the factor
  double capped = 0; ///< like `scaled`, but factors above 1 count as 1

  double at(double factor) const {
    return fixed + scaled / factor + capped / std::min(factor, 1.0);
  }
  PowerSeconds &operator+=(const PowerSeconds &other);
  bool operator==(const PowerSeconds &) const = default;
};

/// Cost of a part of the model, for one microbatch and direction.
struct PassCost {
  PowerSeconds compute;  ///< kernels
  PowerSeconds chain;    ///< critical path through kernels and blocking collectives
  double transfers = 0;  ///< seconds of collectives between parts of the model
  double contending = 0; ///< slowdown of kernels if all transfers overlap them

  /// Lower bound of the seconds, at a power factor.
  double at(double factor) const;
  bool operator==(const PassCost &) const = default;
};

/// Sums over the work of one launch at a power factor: seconds of kernels, of the critical path,
/// and of all collectives.
struct PassSum {
  double kernels = 0, longest = 0, transfers = 0, contending = 0;

  void add(const PassCost &pass, double factor);
  /// Lower bound of the launch's seconds, if something in it takes at least `least`. Includes the
  /// slowdown of kernels by overlapping transfers.
  double seconds(double least = 0) const;
};

/// Numbers of parameters: trained ones, frozen ones, and those that the backward pass reads, so
/// that they may be gathered again.
struct Numel {
  int64_t trained = 0, frozen = 0, again = 0;

  Numel &operator+=(const Numel &other);
  Numel operator-(const Numel &other) const;
  int64_t all() const { return trained + frozen; }
  auto operator<=>(const Numel &) const = default;
};

/// Lower bounds of the bytes that a part of the model keeps on a rank.
struct PartHeld {
  int64_t keptBytes = 0;      ///< activations kept from forward to backward pass
  int64_t keptForWeights = 0; ///< the part that weight gradients read
  int64_t passedBytes = 0;    ///< passed from the input-gradient to the weight-gradient pass
  Numel dense;                ///< sharded or replicated over data-parallel ranks
  Numel experts;

  PartHeld &operator+=(const PartHeld &other);
  PartHeld operator-(const PartHeld &other) const;
  bool operator==(const PartHeld &) const = default;
};

/// Lower bounds of the time of a part of the model for one microbatch, and what the part keeps.
struct PartCost {
  PassCost forward, backward;
  PassCost inputs, weights; ///< input gradients (a stage waits for them); weight gradients
  double products = 0;      ///< seconds of matrix products, both directions, at factor 1
  PartHeld held;

  double both(double factor) const { return forward.at(factor) + backward.at(factor); }
  /// Seconds from receiving a gradient to sending one: backward without weight gradients that no
  /// stage waits for.
  double passing(double factor) const {
    return std::min(backward.chain.at(factor), backward.compute.at(factor));
  }
  bool operator==(const PartCost &) const = default;
};

/// Bytes of an element: of weights, of sent gradients, of their sums, and of master weights and
/// moments together. They depend on how a layout is sharded; 0 is a valid lower bound.
struct ElementBytes {
  int64_t weights = 0, gathered = 0, gradients = 0, sums = 0, state = 0;
  bool dividesInstances = true; ///< instances shard their gradients instead of summing them
};

/// What bounds need to know of a body: its layers, its head and its embedding.
struct BodyCost {
  std::vector<PartCost> layers;
  PartCost head;
  Numel embedding;
  int64_t boundaryBytes = 0;             ///< bytes of activations between two layers
  int64_t momentBytes = 0;               ///< bytes of an element's moments, lower bound
  bool movesPieces = false;              ///< transfers of pieces of rows overlap products
  bool keepsFrozen = false;              ///< frozen weights are replicated, at least if that fits
  bool dividesFrozen = true;             ///< frozen weights are sharded, unless they fit whole
  std::optional<predict::Device> device; ///< for predictions
  model::StageRequest times;             ///< for balanced splits into stages

  /// The least number of dense parameters of any layer.
  int64_t leastOfLayers(int64_t Numel::*of) const {
    auto held = [of](const PartCost &layer) { return layer.held.dense.*of; };
    return held(*std::ranges::min_element(layers, {}, held));
  }
  /// Whether some layer has no backward pass, because no parameter up to it is trained.
  bool hasForwardOnly() const {
    return std::ranges::any_of(layers, [](const PartCost &layer) {
      return layer.backward == PassCost() && layer.forward != PassCost();
    });
  }
  bool hasSameParts(const BodyCost &other) const {
    return layers == other.layers && head == other.head && times.seconds == other.times.seconds;
  }
};

/// The costs of a plan of the whole model, before it is split into stages.
BodyCost costOfBody(const plan::Plan &body);

/// The sums of what consecutive layers keep, from prefix sums.
class LayerSums {
public:
  explicit LayerSums(const std::vector<PartCost> &layers);

  PartHeld of(size_t begin, size_t end) const { return before_[end] - before_[begin]; }
  /// The memory that each chunk keeps, in model order. `layers`: the number of layers of each
  /// chunk.
  std::vector<PartHeld> ofChunks(const std::vector<int64_t> &layers) const;

private:
  std::vector<PartHeld> before_;
};

class StageOrders;

/// Lower bounds: seconds of a step, and bytes of the rank that needs the most.
struct Bound {
  double seconds = 0;
  int64_t bytes = 0;
};

/// The bounds of all layouts of one body. Shared parts are computed once.
class Bounds {
public:
  /// `elements`: the bytes of an element for each mesh.
  Bounds(const BodyCost &cost, const Layout &body, const TuneSizes &sizes,
         std::function<ElementBytes(const Layout &mesh)> elements);

  /// Whether the layers can be divided among the stages and chunks of the mesh.
  bool divides(const Layout &mesh) { return !divide(mesh).empty(); }

  /// The bound of a mesh that divides the layers and the batch.
  Bound of(const Layout &mesh) { return {secondsOf(mesh), bytesOf(mesh)}; }
  /// Its memory alone, which takes less time to compute.
  int64_t bytesOf(const Layout &mesh);

  /// A tighter bound from the order of passes in the schedule, which takes longer to compute. Every
  /// step that takes at most `within` seconds takes at least the returned time. 0 if layers have no
  /// backward pass.
  double refinedSeconds(const Layout &mesh, StageOrders &orders, double within) const;
  /// The same from rough bounds, if recomputation adds these seconds to a microbatch of each stage.
  /// Needs a preceding of() for the mesh; thread-safe.
  double secondsWith(const std::vector<double> &added, const Layout &mesh, double within) const;
  int64_t refinedBytes(const Layout &mesh, StageOrders &orders) const;
  /// The memory bound, given the activations per stage of another plan. This function and the next
  /// ones need a preceding call of of() for the mesh; they are thread-safe.
  int64_t bytesWith(const std::vector<int64_t> &activations, const Layout &mesh) const;

  /// The number of layers of each chunk.
  const std::vector<int64_t> &layersOf(const Layout &mesh) const;

private:
  struct Passes;
  /// Layouts with equal stages, chunks and split share a division, so each is computed once.
  const std::vector<int64_t> &divide(const Layout &mesh);
  /// The least step time of a layout's stages, without data-parallel communication. Layouts with
  /// the same stages share the result.
  const Passes &passesOf(const Layout &mesh);
  double secondsOf(const Layout &mesh);

  const BodyCost &cost_;
  const Layout &body_;
  const TuneSizes &sizes_;
  const std::function<ElementBytes(const Layout &mesh)> elements_;
  LayerSums sums_;
  std::vector<PartCost> kinds_;                           ///< distinct kinds of layers
  std::vector<size_t> kindOf_;                            ///< by layer, its index in kinds_
  std::map<std::string, std::vector<int64_t>> layers_;    ///< layers per chunk, by stages and split
  std::map<std::string, std::shared_ptr<Passes>> passes_; ///< by stages, split and schedule
};

} // namespace shardc::tools
