#include "compiler/tools/TuneExchanges.h"

#include <algorithm>
#include <cmath>

#include "compiler/predict/StepTime.h"

namespace shardc::tools {

Exchanges::Least Exchanges::of(int64_t layers) const {
  Least least;
  least.added = optimizerSeconds(layers);
  for (bool areExperts : {false, true}) {
    int64_t PartCost::*numel = areExperts ? &PartCost::expertNumel : &PartCost::numel;
    int64_t all = layers * body_.leastOfLayers(numel);
    if (all > 0)
      add(least, all, areExperts);
  }
  return least;
}

double Exchanges::optimizerSeconds(int64_t layers) const {
  // Master weights and moments are read and written.
  auto bytes = static_cast<double>(2 * body_.stateBytes + body_.weightBytes + body_.gradientBytes);
  bool isNone = mesh_.is(Knob::Sharding, "none");
  double seconds = 0;
  for (bool areExperts : {false, true}) {
    int64_t PartCost::*numel = areExperts ? &PartCost::expertNumel : &PartCost::numel;
    int64_t shards = isNone ? 1 : mesh_.sharers(sizes_, areExperts);
    seconds += static_cast<double>(layers * body_.leastOfLayers(numel)) * bytes /
               static_cast<double>(shards) / (body_.device->sustained.memoryGBs * 1e9);
  }
  return seconds;
}

ExchangeCost Exchanges::reduced(int64_t numel, bool areExperts) const {
  CollectiveKind sum =
      mesh_.is(Knob::Sharding, "none") ? CollectiveKind::AllReduce : CollectiveKind::ReduceScatter;
  return costOf(sum, numel * body_.gradientBytes, areExperts);
}

ExchangeCost Exchanges::gathered(int64_t numel, bool areExperts) const {
  return costOf(CollectiveKind::AllGather, numel * body_.gatheredBytes, areExperts);
}

void Exchanges::add(Least &least, int64_t numel, bool areExperts) const {
  double reductions = reducesEachPass() ? microbatches_ : 1;
  double gathers = gathersEachPass() ? 2 * microbatches_ : gathersOnce() ? 1 : 0;
  ExchangeCost all = reduced(numel, areExperts), weights = gathered(numel, areExperts);
  least.added += reductions * all.contending + gathers * weights.contending;
  least.stream = std::max({least.stream, reductions * all.took, gathers * weights.took});
  if (areExperts)
    return;
  // When the gradients of a backward pass that come last are exchanged, nothing is left beside it.
  int64_t last =
      mesh_.size(Knob::Stages) > 1 ? body_.leastOfLayers(&PartCost::numel) : body_.embeddingNumel;
  ExchangeCost exposed = reduced(last, areExperts);
  double passes = reducesEachPass() ? static_cast<double>(mesh_.size(Knob::Chunks)) : 1;
  least.added += passes * reductions * (exposed.took - exposed.contending);
}

ExchangeCost Exchanges::costOf(CollectiveKind kind, int64_t bytes, bool areExperts) const {
  int64_t members = mesh_.sharers(sizes_, areExperts);
  if (members == 1 || bytes == 0)
    return {};
  int64_t stride = areExperts ? mesh_.expertRanks() : mesh_.size(Knob::Tensor);
  int64_t inNode = std::clamp<int64_t>(sizes_.inNode / stride, 1, members);
  predict::Team team{members, inNode, inNode};
  ExchangeCost least{HUGE_VAL, HUGE_VAL};
  for (plan::Transport way : {plan::Transport::Nccl, plan::Transport::Ce}) {
    double took = predict::collectiveSeconds(*body_.device, kind, way, bytes, team);
    least.took = std::min(least.took, took);
    least.contending =
        std::min(least.contending, predict::contendingSeconds(kind, way, bytes, members, took));
  }
  least.contending *= predict::kContention;
  return least;
}

} // namespace shardc::tools
