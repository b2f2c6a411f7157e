#include "compiler/passes/Pipeline.h"

#include <algorithm>

namespace shardc::passes {
namespace {

constexpr PassId kOrder[] = {
    // Biases first: what the other fusions look for are products and norms without a bias op
    // between.
    PassId::FuseBias,
    PassId::FuseQkvRope,
    // Before Backward, so that each fused op has one backward rule and residual gradients are added
    // there.
    PassId::FuseResidualNorm,
    PassId::FuseLossHead,
    PassId::Backward,
    // Before Recompute, which makes again what is still read: this is cheaper.
    PassId::ReemitActivations,
    // On the whole body, forward and backward, but before units: what it makes again reads weights,
    // and
    // gathers have to be placed around these reads too.
    PassId::Recompute,
    // Behind Recompute, which chooses among the ops that these two join.
    PassId::FuseQkvAttention,
    PassId::FuseEpilogues,
    PassId::ShardUnits,
    PassId::InsertCollectives,
    // Takes the place of collectives of the table, and finds it by them.
    PassId::ExchangeEmbeddingRows,
    PassId::ReduceTiedHead,
    // After the collectives, because the update works on the shards that they leave behind.
    PassId::BuildUpdate,
    // After the update, whose norm it takes apart, and after all that reduces a gradient twice.
    PassId::FuseNormIntoExchange,
    // Before the schedule, which orders what this moves.
    PassId::Overlap,
    PassId::Schedule,
    // After the schedule, which knows nothing of what runs beside the program.
    PassId::Snapshot,
    // Last: addresses depend on what runs beside what.
    PassId::PlaceBuffers,
};

} // namespace

bool isOptional(PassId id) {
  switch (id) {
  case PassId::FuseBias:
  case PassId::FuseQkvRope:
  case PassId::FuseResidualNorm:
  case PassId::FuseLossHead:
  case PassId::ReemitActivations:
  case PassId::FuseQkvAttention:
  case PassId::FuseEpilogues:
  case PassId::ReduceTiedHead:
  case PassId::FuseNormIntoExchange:
  case PassId::Overlap:
    return true;
  default:
    return false;
  }
}

bool isOnRequest(PassId id) { return id == PassId::ExchangeEmbeddingRows; }

std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes) {
  std::vector<PassTime> times;
  auto has = [](const std::vector<PassId> &ids, PassId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  for (PassId id : kOrder) {
    if (has(options.disabled, id) || (isOnRequest(id) && !has(options.enabled, id)))
      continue;
    auto start = std::chrono::steady_clock::now();
    runPass(id, plan, notes);
    std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    times.push_back({id, elapsed.count()});
    if (options.after)
      options.after(id, plan);
  }
  return times;
}

} // namespace shardc::passes
