// Lower bounds of the time of data-parallel communication and of the optimizer in a step.
#pragma once

#include "compiler/tools/TuneBound.h"

namespace shardc::tools {

/// Seconds of a collective with the fastest transport, and the slowdown that the least disturbing
/// transport causes.
struct ExchangeCost {
  double took = 0, contending = 0;
};

/// Numbers of parameters: dense and expert.
struct Numels {
  Numel dense, experts;
};

/// Lower bounds of the numbers in any stage. `chunks`: what each chunk holds.
Numels leastOfStages(const Layout &mesh, const std::vector<PartHeld> &chunks);

/// Costs of data-parallel communication under one mesh. `body`, `mesh` and `sizes` must outlive it.
class Exchanges {
public:
  Exchanges(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
            const TuneSizes &sizes, int64_t microbatches)
      : body_(body), elements_(elements), mesh_(mesh), sizes_(sizes),
        microbatches_(static_cast<double>(microbatches)) {}

  /// Seconds added to the passes of a stage with the given parameters, and a lower bound of the
  /// seconds of its busiest communication stream.
  struct Least {
    double added = 0, stream = 0;
  };
  Least of(const Numels &numels) const;

  /// Seconds of the optimizer, which updates `numels` parameters.
  double optimizerSeconds(const Numels &numels) const;
  /// Cost of reducing the gradients of `numel` parameters. Zero for a single rank. gathered()
  /// likewise gives the cost of gathering them.
  ExchangeCost reduced(int64_t numel, bool areExperts) const;
  /// Cost of the all-reduce between instances, once per step.
  ExchangeCost summed(int64_t numel, bool areExperts) const;
  ExchangeCost gathered(int64_t numel, bool areExperts) const;
  /// Lower bound of the number of parameters that the forward pass gathers.
  int64_t gatheredOf(const Numel &numel) const;

  /// Whether gradients are reduced in each backward pass instead of once per step.
  bool reducesEachPass() const { return mesh_.isSharded(); }
  /// Whether weights are gathered in each pass that uses them.
  bool gathersEachPass() const { return mesh_.is(Knob::Sharding, "fsdp"); }
  /// Whether weights are gathered once per step.
  bool gathersOnce() const {
    return mesh_.is(Knob::Sharding, "distopt") || mesh_.is(Knob::Sharding, "optim_grads");
  }

private:
  /// Adds the exchanges of dense parameters, or of those of experts.
  void add(Least &least, const Numel &numel, bool areExperts) const;
  /// The cost of one collective among `members` ranks whose numbers are `stride` apart.
  ExchangeCost costOf(CollectiveKind kind, int64_t bytes, int64_t members, int64_t stride) const;
  ExchangeCost costOf(CollectiveKind kind, int64_t bytes, bool areExperts) const;

  const BodyCost &body_;
  const ElementBytes elements_;
  const Layout &mesh_;
  const TuneSizes &sizes_;
  double microbatches_;
};

} // namespace shardc::tools
