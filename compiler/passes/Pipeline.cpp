// Lists the passes in order, each with the reason for its position.
#include "compiler/passes/Pipeline.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "compiler/passes/ChooseRecompute.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

std::atomic<int64_t> placed = 0; ///< plans

constexpr PassId kOrder[] = {
    // Before all other passes, which then work on the ops of one rank. A bias after a sum over
    // ranks must stay there, and no fusion may join ops that have a collective between them.
    PassId::Partition,
    // Biases first, since the other fusions look for products and norms that follow each other
    // directly.
    PassId::FuseBias,
    PassId::FuseQkvRope,
    // Before Backward, so that each fused op needs only one backward rule, and residual gradients
    // are added in the backward op of the norm.
    PassId::FuseResidualNorm,
    PassId::FuseLossHead,
    PassId::Backward,
    // After Backward, whose ops it moves. Before Recompute, which recomputes the values that ops
    // after the forward pass read.
    PassId::ChunkLossHead,
    // Before Recompute: writing an activation again is cheaper than recomputing it.
    PassId::ReemitActivations,
    // Before Recompute, whose regions must lie within stages.
    PassId::BalanceStages,
    // On the whole body, forward and backward. Before ShardUnits, because recomputed ops also read
    // weights, which must be gathered for them.
    PassId::Recompute,
    // After Recompute, which selects products and moves weight gradients. Before FuseEpilogues,
    // which fuses only products that are not quantised.
    PassId::Quantize,
    PassId::FuseQuantize,
    // After Recompute, which selects individual ops among those that these two passes fuse.
    PassId::FuseQkvAttention,
    PassId::FuseEpilogues,
    // After the passes that replace ops, and before predictions of the body.
    PassId::CountRows,
    // After the passes that look at forward and backward ops together. Before parameters are laid
    // out in blocks, since a stage has either all or nothing of a block.
    PassId::SplitStages,
    // After SplitStages, which splits between layers. Before ShardUnits, which adds a pack after
    // the last gradient of each unit.
    PassId::OverlapTensorCollectives,
    PassId::DelayWeightGrads,
    // After the passes that split, move or fuse individual products.
    PassId::FuseSums,
    PassId::ShardUnits,
    PassId::InsertCollectives,
    // After InsertCollectives: these two passes recognise the table by its collectives and replace
    // them.
    PassId::ExchangeEmbeddingRows,
    PassId::ReduceTiedHead,
    // After the collectives, because the update works on the shards that they produce.
    PassId::BuildUpdate,
    // After BuildUpdate, because it changes the norm, and after all passes that reduce a gradient a
    // second time.
    PassId::FuseNormIntoExchange,
    // Like FuseNormIntoExchange, for products that no reduction follows.
    PassId::FuseNormIntoProducts,
    // Before Schedule, which orders the gathers that this moves.
    PassId::Overlap,
    // After all passes that replace or move ops of the bodies. Before Schedule, which limits the
    // copies that are under way.
    PassId::Offload,
    // After all passes that treat the passes of one microbatch alike. Before Schedule, which adds
    // waits to the ops in their order.
    PassId::OverlapPasses,
    PassId::Schedule,
    // After Schedule, which does not handle segments outside the program.
    PassId::Snapshot,
    // Last: addresses depend on which ops may run at the same time.
    PassId::PlaceBuffers,
};

/// If the job leaves the choice to the compiler, frozen weights stay whole on each rank if such a
/// plan fits the device's memory; otherwise they are sharded like the others.
void chooseKeepFrozen(plan::Plan &plan, const PipelineOptions &options, Notes &notes) {
  using plan::Job;
  if (plan.job.ddp.keepFrozen != Job::KeepFrozen::IfFits)
    return;
  auto choose = [](plan::Plan &of, std::string word) {
    of.job.put(plan::JobField::ddp_keepFrozen, std::move(word));
  };
  plan::Plan whole = plan;
  choose(whole, "always");
  if (choosesRecompute(whole)) { // then they fit if all layers are recomputed
    auto layers = std::ranges::count(plan.units, plan::UnitKind::Layer, &plan::Unit::kind);
    whole.job.put(plan::JobField::model_recomputeLayers,
                  std::vector{fmt::format("{}*full", layers)});
  }
  PipelineOptions quiet = options;
  quiet.after = nullptr;
  quiet.isWanted = nullptr;
  Notes ignored;
  runPipeline(whole, quiet, ignored);
  int64_t most = 0;
  for (const plan::Role &role : whole.roles)
    most = std::max(most, predict::deviceBytesOf(whole, role));
  bool fits = most <= plan.deviceBytes;
  choose(plan, fits ? "always" : "never");
  notes.push_back({fmt::format("'ddp.keep_frozen = if_fits' keeps frozen weights {}: {} of {} are "
                               "needed if they are whole",
                               fits ? "whole on each rank" : "divided", plan::formatBytes(most),
                               plan::formatBytes(plan.deviceBytes)),
                   "kept-frozen"});
}

} // namespace

bool isOptional(PassId id) {
  switch (id) {
  case PassId::FuseBias:
  case PassId::FuseQkvRope:
  case PassId::FuseResidualNorm:
  case PassId::FuseLossHead:
  case PassId::ChunkLossHead:
  case PassId::ReemitActivations:
  case PassId::FuseQuantize:
  case PassId::FuseQkvAttention:
  case PassId::FuseEpilogues:
  case PassId::CountRows:
  case PassId::OverlapTensorCollectives:
  case PassId::FuseSums:
  case PassId::ReduceTiedHead:
  case PassId::FuseNormIntoExchange:
  case PassId::FuseNormIntoProducts:
  case PassId::Overlap:
    return true;
  default:
    return false;
  }
}

bool isOnRequest(PassId id) {
  return id == PassId::DelayWeightGrads || id == PassId::ExchangeEmbeddingRows;
}

void finishBody(plan::Plan &plan, PassId first) {
  Notes notes;
  runPasses(plan, {}, notes, first, PassId::SplitStages);
  runPass(PassId::FuseSums, plan, notes); // the last pass to change ops of an unsplit body
}

std::vector<PassTime> runPasses(plan::Plan &plan, const PipelineOptions &options, Notes &notes,
                                PassId first, std::optional<PassId> end) {
  std::vector<PassTime> times;
  auto has = [](const std::vector<PassId> &ids, PassId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  for (auto id = std::ranges::find(kOrder, first); id < std::end(kOrder) && *id != end; ++id) {
    if (has(options.disabled, *id) || (isOnRequest(*id) && !has(options.enabled, *id)))
      continue;
    auto start = std::chrono::steady_clock::now();
    runPass(*id, plan, notes);
    placed += *id == PassId::PlaceBuffers;
    std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    times.push_back({*id, elapsed.count()});
    if (options.after)
      options.after(*id, plan);
  }
  return times;
}

int64_t placedPlans() { return placed; }

std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes) {
  chooseKeepFrozen(plan, options, notes);
  if (choosesRecompute(plan) && !chooseRecompute(plan, options, notes))
    return {};
  return runPasses(plan, options, notes, *std::begin(kOrder), std::nullopt);
}

} // namespace shardc::passes
