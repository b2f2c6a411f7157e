#include "compiler/tools/TuneExchanges.h"

#include <algorithm>
#include <cmath>

#include "compiler/predict/StepTime.h"

namespace shardc::tools {

namespace {

/// The minimum of each number; the minima may come from different stages.
Numel fewer(const Numel &a, const Numel &b) {
  return {std::min(a.trained, b.trained), std::min(a.frozen, b.frozen), std::min(a.again, b.again)};
}

} // namespace

Numels leastOfStages(const Layout &mesh, const std::vector<PartHeld> &chunks) {
  Numels least;
  auto stages = static_cast<size_t>(mesh.size(Knob::Stages));
  for (size_t stage = 0; stage < std::min(stages, chunks.size()); ++stage) {
    Numels own;
    for (size_t chunk = stage; chunk < chunks.size(); chunk += stages) {
      own.dense += chunks[chunk].dense;
      own.experts += chunks[chunk].experts;
    }
    least =
        stage == 0 ? own : Numels{fewer(least.dense, own.dense), fewer(least.experts, own.experts)};
  }
  return least;
}

Exchanges::Least Exchanges::of(const Numels &numels) const {
  Least least;
  least.added = optimizerSeconds(numels);
  for (bool areExperts : {false, true})
    if (const Numel &numel = areExperts ? numels.experts : numels.dense; numel.all() > 0)
      add(least, numel, areExperts);
  return least;
}

double Exchanges::optimizerSeconds(const Numels &numels) const {
  // Master weights and moments are both read and written.
  auto bytes = static_cast<double>(2 * elements_.state + elements_.weights + elements_.gradients);
  bool isNone = mesh_.is(Knob::Sharding, "none");
  double seconds = 0;
  for (bool areExperts : {false, true}) {
    int64_t shards = isNone ? 1 : mesh_.sharers(sizes_, areExperts);
    if (elements_.dividesInstances)
      shards *= mesh_.size(Knob::Instances);
    seconds += static_cast<double>((areExperts ? numels.experts : numels.dense).trained) * bytes /
               static_cast<double>(shards) / (body_.device->sustained.memoryGBs * 1e9);
  }
  return seconds;
}

ExchangeCost Exchanges::reduced(int64_t numel, bool areExperts) const {
  CollectiveKind sum =
      mesh_.is(Knob::Sharding, "none") ? CollectiveKind::AllReduce : CollectiveKind::ReduceScatter;
  return costOf(sum, numel * elements_.gradients, areExperts);
}

ExchangeCost Exchanges::summed(int64_t numel, bool areExperts) const {
  int64_t instances = mesh_.size(Knob::Instances);
  int64_t ranks = sizes_.ranks / (mesh_.size(Knob::Stages) *
                                  (areExperts ? mesh_.expertRanks() : mesh_.size(Knob::Tensor)));
  if (instances == 1 || elements_.dividesInstances || ranks % instances != 0)
    return {};
  int64_t own = numel / mesh_.sharers(sizes_, areExperts);
  return costOf(CollectiveKind::AllReduce, own * elements_.gradients, instances,
                sizes_.ranks / (mesh_.size(Knob::Stages) * instances));
}

ExchangeCost Exchanges::gathered(int64_t numel, bool areExperts) const {
  return costOf(CollectiveKind::AllGather, numel * elements_.gathered, areExperts);
}

int64_t Exchanges::gatheredOf(const Numel &numel) const {
  return gathersEachPass() && !body_.keepsFrozen ? numel.all() : numel.trained;
}

void Exchanges::add(Least &least, const Numel &numel, bool areExperts) const {
  double reductions = reducesEachPass() ? microbatches_ : 1;
  double gathers = gathersEachPass() ? microbatches_ : gathersOnce() ? 1 : 0;
  double again = gathersEachPass() ? microbatches_ : 0;
  ExchangeCost all = reduced(numel.trained, areExperts), sum = summed(numel.trained, areExperts),
               weights = gathered(gatheredOf(numel), areExperts),
               weightsAgain = gathered(numel.again, areExperts);
  least.added += reductions * all.contending + sum.contending + gathers * weights.contending +
                 again * weightsAgain.contending;
  least.stream = std::max({least.stream, reductions * all.took + sum.took,
                           gathers * weights.took + again * weightsAgain.took});
  if (areExperts)
    return;
  // While the last gradients of a backward pass are reduced, no kernel overlaps the reduction.
  int64_t last =
      mesh_.size(Knob::Stages) > 1 ? body_.leastOfLayers(&Numel::trained) : body_.embedding.trained;
  ExchangeCost exposed = reduced(last, areExperts), exposedSum = summed(last, areExperts);
  double passes = reducesEachPass() ? static_cast<double>(mesh_.size(Knob::Chunks)) : 1;
  least.added += passes * reductions * (exposed.took - exposed.contending) + exposedSum.took -
                 exposedSum.contending;
}

ExchangeCost Exchanges::costOf(CollectiveKind kind, int64_t bytes, bool areExperts) const {
  return costOf(kind, bytes, mesh_.sharers(sizes_, areExperts),
                areExperts ? mesh_.expertRanks() : mesh_.size(Knob::Tensor));
}

ExchangeCost Exchanges::costOf(CollectiveKind kind, int64_t bytes, int64_t members,
                               int64_t stride) const {
  if (members == 1 || bytes == 0)
    return {};
  predict::Team team = predict::teamOf(*body_.device, sizes_.inNode, members, stride);
  ExchangeCost least{HUGE_VAL, HUGE_VAL};
  for (plan::Transport way :
       {plan::Transport::Nccl, plan::Transport::Ce, plan::Transport::Exchange}) {
    double took = predict::collectiveSeconds(*body_.device, kind, way, bytes, team);
    least.took = std::min(least.took, took);
    least.contending =
        std::min(least.contending, predict::contendingSeconds(kind, way, bytes, members, took));
  }
  least.contending *= predict::kContention;
  return least;
}

} // namespace shardc::tools
