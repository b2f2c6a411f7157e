// What a layout takes at least, without compiling it: seconds of a step and bytes of a device. A
// bound is never above what the plan then takes, so a layout whose bound is beyond what was found
// needs no plan. The ops of layers are those of the finished body, which layouts share.
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

/// Of what runs in a launch, at a factor of power: seconds of its kernels, of the longest of them
/// and of collectives that wait for each other, and of all collectives.
struct PassSum {
  double kernels = 0, longest = 0, transfers = 0, contending = 0;

  void add(const PassCost &pass, double factor);
  /// At least, of a launch in which something lasts `least`. What overlaps slows kernels down.
  double seconds(double least = 0) const;
};

/// Parameters: those that are trained, and those that are not; of those that may be gathered, what
/// the backward pass reads.
struct Numel {
  int64_t trained = 0, frozen = 0, again = 0;

  Numel &operator+=(const Numel &other);
  Numel operator-(const Numel &other) const;
  int64_t all() const { return trained + frozen; }
  auto operator<=>(const Numel &) const = default;
};

/// What a part of the model, or several ones, hold on a rank at least.
struct PartHeld {
  int64_t keptBytes = 0;      ///< from the forward to the backward pass
  int64_t keptForWeights = 0; ///< of these, what the second part of the backward pass reads
  int64_t passedBytes = 0;    ///< from the first part of the backward pass to the second one
  Numel dense;                ///< that data-parallel ranks share
  Numel experts;

  PartHeld &operator+=(const PartHeld &other);
  PartHeld operator-(const PartHeld &other) const;
  bool operator==(const PartHeld &) const = default;
};

/// Least seconds of a part of the model for one microbatch, and what it holds.
struct PartCost {
  PassCost forward, backward;
  PassCost inputs, weights; ///< backward in parts: what a stage before waits for, and the rest
  double products = 0;      ///< seconds of products of both, at the factor 1
  PartHeld held;

  double both(double factor) const { return forward.at(factor) + backward.at(factor); }
  /// From the first gradient that it takes to the last one that it passes on: backward without the
  /// gradients of weights that nobody waits for.
  double passing(double factor) const {
    return std::min(backward.chain.at(factor), backward.compute.at(factor));
  }
  bool operator==(const PartCost &) const = default;
};

/// Bytes of an element: of weights, gradients that are sent, their sums, and master weights and
/// moments together. They depend on how a layout is sharded; none are the least.
struct ElementBytes {
  int64_t weights = 0, gathered = 0, gradients = 0, sums = 0, state = 0;
  bool dividesInstances = true; ///< what instances hold, so that they do not sum it
};

struct BodyCost {
  std::vector<PartCost> layers;
  PartCost head;
  Numel embedding;
  int64_t boundaryBytes = 0;             ///< of activations that a layer leaves to the next one
  int64_t momentBytes = 0;               ///< of an element, at least
  bool movesPieces = false;              ///< of rows, beside products
  bool keepsFrozen = false;              ///< whole on each rank, at least where that fits
  bool dividesFrozen = true;             ///< where the others are, unless they fit whole
  std::optional<predict::Device> device; ///< that runs it
  model::StageRequest times;             ///< by which balanced stages are divided

  /// Of the dense parameters of each layer.
  int64_t leastOfLayers(int64_t Numel::*of) const {
    auto held = [of](const PartCost &layer) { return layer.held.dense.*of; };
    return held(*std::ranges::min_element(layers, {}, held));
  }
  /// Whether some layer has no backward pass, since nothing up to it is trained.
  bool hasForwardOnly() const {
    return std::ranges::any_of(layers, [](const PartCost &layer) {
      return layer.backward == PassCost() && layer.forward != PassCost();
    });
  }
  bool hasSameParts(const BodyCost &other) const {
    return layers == other.layers && head == other.head && times.seconds == other.times.seconds;
  }
};

/// Of a plan of the whole model, before it is cut into stages.
BodyCost costOfBody(const plan::Plan &body);

/// That of a model with so many layers, of one whose layers between the first and the last are
/// alike.
BodyCost withLayers(BodyCost cost, int64_t layers);

/// What the layers of chunks and stages hold.
class LayerSums {
public:
  explicit LayerSums(const std::vector<PartCost> &layers);

  PartHeld of(size_t begin, size_t end) const { return before_[end] - before_[begin]; }
  /// By chunk, in the order of the model, of chunks with so many layers.
  std::vector<PartHeld> ofChunks(const std::vector<int64_t> &layers) const;

private:
  std::vector<PartHeld> before_;
};

class StageOrders;

/// Seconds of a step, and bytes of the rank that needs most.
struct Bound {
  double seconds = 0;
  int64_t bytes = 0;
};

/// The bounds of a body's layouts. What they share is computed once.
class Bounds {
public:
  /// `elements`: of each of its meshes.
  Bounds(const BodyCost &cost, const Layout &body, const TuneSizes &sizes,
         std::function<ElementBytes(const Layout &mesh)> elements);

  /// Whether the layers can be divided among the stages and chunks of the mesh.
  bool divides(const Layout &mesh) { return !divide(mesh).empty(); }

  /// Of one of its meshes that divides the layers and the batch.
  Bound of(const Layout &mesh);

  /// By the order in which the stages run their passes; these take longer. No step that takes no
  /// longer than `within` takes less than this. 0 where layers have no backward pass.
  double refinedSeconds(const Layout &mesh, StageOrders &orders, double within) const;
  int64_t refinedBytes(const Layout &mesh, StageOrders &orders) const;
  /// With the activations of each stage that another plan has. These three are for meshes of which
  /// `of` has been asked; any thread may call them.
  int64_t bytesWith(const std::vector<int64_t> &activations, const Layout &mesh) const;

  /// Of each chunk of one of these.
  const std::vector<int64_t> &layersOf(const Layout &mesh) const;

private:
  struct Passes;
  const std::vector<int64_t> &divide(const Layout &mesh);
  const Passes &passesOf(const Layout &mesh);
  double secondsOf(const Layout &mesh);

  const BodyCost &cost_;
  const Layout &body_;
  const TuneSizes &sizes_;
  const std::function<ElementBytes(const Layout &mesh)> elements_;
  LayerSums sums_;
  std::vector<PartCost> kinds_;                           ///< layers that differ
  std::vector<size_t> kindOf_;                            ///< of each layer
  std::map<std::string, std::vector<int64_t>> layers_;    ///< of each chunk, by stages and division
  std::map<std::string, std::shared_ptr<Passes>> passes_; ///< by these and the schedule
};

} // namespace shardc::tools
