// Turns whole blocks into shards as the sharding strategy requires, and adds the necessary
// collectives.
//
// clang-format off
//                     weights                            gradients
// no_shard            whole                              all-reduced after the last microbatch
// optim               gathered before the first forward  reduce-scattered after the last microbatch
// optim_grads         gathered before the first forward  reduce-scattered after each microbatch,
//                                                        added to the shard
// optim_grads_params  gathered around each use of a      reduce-scattered after each microbatch,
//                     unit                               added to the shard
// clang-format on
//
// Several groups may hold the same shards. Then the shard of a gradient is all-reduced over the
// ranks that hold it, after the last microbatch. If the optimizer state of a shard is sharded
// further over these ranks, the gradient is reduce-scattered instead, and the shard of the weights
// is gathered before the first forward pass.
#include <algorithm>

#include "compiler/passes/BlockCollectives.h"
#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

/// Collectives inside layers have their own stream, so that they never queue behind those of
/// blocks. Transfers between slices of sequences have another one, so that they overlap attention.
plan::StreamKind streamOf(const plan::Plan &plan, int16_t group) {
  int16_t context = plan::groupOfKind(plan, plan::GroupKind::Context);
  if (context < 0)
    return plan::StreamKind::Layer;
  auto axesOf = [&](int16_t which) -> const std::vector<uint16_t> & {
    return plan.groups[static_cast<size_t>(which)].axes;
  };
  bool isOfContext = std::ranges::all_of(axesOf(group), [&](uint16_t axis) {
    return std::ranges::find(axesOf(context), axis) != axesOf(context).end();
  });
  return isOfContext ? plan::StreamKind::Context : plan::StreamKind::Layer;
}

/// In deterministic runs, sums must be added in the order of ranks. Large gathers between
/// tensor-parallel ranks use copy engines, which leave the multiprocessors to the weight gradients
/// that run at the same time.
plan::Transport transportOf(const plan::Plan &plan, const plan::Segment &segment,
                            const plan::Op &op) {
  if (plan.job.model.deterministicMode)
    return plan::Transport::Exchange;
  if (op.kind != plan::OpKind::AllGather || streamOf(plan, op.group) != plan::StreamKind::Layer)
    return plan::Transport::Nccl;
  return predict::chooseLayerGather(plan, op.group, segment.values[op.results[0]].type.bytes());
}

/// Collectives by copy engines have a channel of their own for each group.
void chooseChannels(plan::Plan &plan, plan::Segment &segment) {
  for (plan::Op &op : segment.ops) {
    bool isCollective = plan::opInfo(op).traits == plan::OpTraits::Collective;
    if (!isCollective || op.channel != plan::kNoChannel)
      continue;
    plan::Transport transport = transportOf(plan, segment, op);
    std::string name = plan.groups[static_cast<size_t>(op.group)].name;
    if (transport == plan::Transport::Ce)
      name += "_gather";
    plan::setChannel(plan, op,
                     plan::channelOf(plan, op.group, streamOf(plan, op.group), transport, name));
  }
}

} // namespace

/// Channels are chosen for the model's own collectives first, then weights are gathered and
/// gradients reduced.
void runInsertCollectives(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles) {
    for (plan::Segment &segment : role.segments)
      chooseChannels(plan, segment);
    BlockCollectives blocks(plan, role);
    blocks.changeCells();
    for (plan::Segment &segment : role.segments) {
      gatherWeights(plan, role, segment, blocks);
      reduceGradients(plan, role, segment, blocks);
    }
    dropUnusedCells(role);
  }
}

} // namespace shardc::passes
