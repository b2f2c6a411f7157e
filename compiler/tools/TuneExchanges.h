// What data-parallel ranks exchange in a step, and their optimizer, at least.
#pragma once

#include "compiler/tools/TuneBound.h"

namespace shardc::tools {

/// Of a collective, seconds: by the fastest transport, and by the one that slows kernels least.
struct ExchangeCost {
  double took = 0, contending = 0;
};

/// Parameters of dense layers, and of experts.
struct Numels {
  Numel dense, experts;
};

/// The fewest of any stage, by what chunks hold.
Numels leastOfStages(const Layout &mesh, const std::vector<PartHeld> &chunks);

class Exchanges {
public:
  Exchanges(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
            const TuneSizes &sizes, int64_t microbatches)
      : body_(body), elements_(elements), mesh_(mesh), sizes_(sizes),
        microbatches_(static_cast<double>(microbatches)) {}

  /// Seconds that are added to those of the passes of a stage with so many parameters, and the
  /// least that one of its streams of collectives takes.
  struct Least {
    double added = 0, stream = 0;
  };
  Least of(const Numels &numels) const;

  /// Of the optimizer.
  double optimizerSeconds(const Numels &numels) const;
  /// That add the gradients of so many parameters, and that gather these; nothing if one rank has
  /// them.
  ExchangeCost reduced(int64_t numel, bool areExperts) const;
  /// That add what instances have added, once in a step.
  ExchangeCost summed(int64_t numel, bool areExperts) const;
  ExchangeCost gathered(int64_t numel, bool areExperts) const;
  /// Those of the parameters that are gathered in the forward pass, at least.
  int64_t gatheredOf(const Numel &numel) const;

  /// Whether gradients are added in each backward pass, and not once in a step.
  bool reducesEachPass() const { return mesh_.isSharded(); }
  bool gathersEachPass() const { return mesh_.is(Knob::Sharding, "fsdp"); }
  /// Whether weights are gathered once in a step.
  bool gathersOnce() const {
    return mesh_.is(Knob::Sharding, "distopt") || mesh_.is(Knob::Sharding, "optim_grads");
  }

private:
  void add(Least &least, const Numel &numel, bool areExperts) const;
  ExchangeCost costOf(CollectiveKind kind, int64_t bytes, int64_t members, int64_t stride) const;
  ExchangeCost costOf(CollectiveKind kind, int64_t bytes, bool areExperts) const;

  const BodyCost &body_;
  const ElementBytes elements_;
  const Layout &mesh_;
  const TuneSizes &sizes_;
  double microbatches_;
};

} // namespace shardc::tools
