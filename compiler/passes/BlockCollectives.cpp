#include "compiler/passes/BlockCollectives.h"

#include <algorithm>

#include "compiler/passes/CellTable.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/WeightScales.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

/// The transport of gathers, reductions or sums of blocks or of their shards.
plan::Transport chooseWay(const plan::Plan &plan, const Strategy &strategy, CollectiveKind kind,
                          int16_t group, Scope scope = Scope::Whole) {
  bool isGather = kind == CollectiveKind::AllGather;
  predict::Traffic traffic = predict::trafficOf(plan, kind, group);
  std::vector<uint8_t> in8Bits = plan::blocksIn8Bits(plan);
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    int64_t gathered = in8Bits[b] != 0 ? 1 : dtypeBytes(strategy.params);
    traffic.wholeBytes.push_back(
        (scope == Scope::Shard ? plan.blocks[b].shard : plan.blocks[b].numel) *
        (isGather ? gathered : dtypeBytes(strategy.wire)));
  }
  traffic.isDeterministic = plan.job.model.deterministicMode;
  return predict::chooseTransport(predict::deviceOf(plan), traffic);
}

/// The group of the ranks that hold the same shards: it is added if the plan lacks it. -1 if each
/// shard is on one rank only.
int16_t groupOfCopies(plan::Plan &plan, const Strategy &strategy) {
  if (!strategy.shardsState || strategy.dataRanks == strategy.ranks)
    return -1;
  std::vector<uint16_t> axes = plan.groups[static_cast<size_t>(groupOfGradients(plan))].axes;
  for (uint16_t axis : plan.groups[static_cast<size_t>(strategy.group)].axes)
    std::erase(axes, axis);
  return plan::groupOf(plan, std::move(axes));
}

} // namespace

BlockCollectives::BlockCollectives(plan::Plan &plan, plan::Role &role)
    : plan_(plan), role_(role), strategy_(readStrategy(plan)),
      loc_(jobLoc(plan, plan.job.derived.locStrategy)),
      numBlocks_(static_cast<uint32_t>(plan.blocks.size())),
      weightCells_(plan::findCells(role, plan::CellKind::Weight, numBlocks_)),
      gradCells_(plan::findCells(role, plan::CellKind::Gradient, numBlocks_)),
      sumGroup_(groupOfGradients(plan)), copyGroup_(groupOfCopies(plan, strategy_)),
      gathers_(chooseWay(plan, strategy_, CollectiveKind::AllGather, strategy_.group)),
      reductions_(strategy_.shardsState
                      ? chooseWay(plan, strategy_, CollectiveKind::ReduceScatter, strategy_.group)
                      : chooseWay(plan, strategy_, CollectiveKind::AllReduce, sumGroup_)),
      shardReductions_(chooseWay(plan, strategy_,
                                 strategy_.dividesShards() ? CollectiveKind::ReduceScatter
                                                           : CollectiveKind::AllReduce,
                                 copyGroup_, Scope::Shard)),
      shardGathers_(
          chooseWay(plan, strategy_, CollectiveKind::AllGather, copyGroup_, Scope::Shard)) {}

void BlockCollectives::changeCells() {
  if (strategy_.shardsState)
    gradShardCells_.assign(numBlocks_, plan::kNone);
  if (strategy_.dividesShards() || (strategy_.shardsState && !strategy_.shardsParams))
    shardCells_.assign(numBlocks_, plan::kNone);
  for (uint32_t b = 0; b < numBlocks_; ++b) {
    if (weightCells_[b] == plan::kNone)
      continue; // another role has the block
    const plan::Block &block = plan_.blocks[b];
    Type shard = Type::of(strategy_.mainGrads, {block.shard});
    plan::Cell &weight = role_.cells[weightCells_[b]];
    if (strategy_.dividesShards()) {
      addSlot(b, block.shard, block.stateShard);
    } else if (strategy_.shardsParams) {
      weight.type.shape[0] = block.shard;
      // Both ends of a gather by copy engines must be registered. A weight that is its own master
      // stays with the state that is saved.
      if (gathers_ == plan::Transport::Ce && !strategy_.masterIsParam())
        weight.arena = plan::Arena::Sym;
    } else if (strategy_.shardsState) {
      addSlot(b, block.numel, block.shard);
    }
    if (strategy_.shardsState)
      gradShardCells_[b] = addCell(role_, "gs." + block.name, {plan::CellKind::GradientShard, b},
                                   shard, plan::Arena::Work, plan::Purpose::Grads);
    if (strategy_.accumulatesLocally())
      role_.cells[gradCells_[b]].type.dtype = strategy_.mainGrads;
  }
}

/// The block's weights are kept, and gathered once a step from what each rank updates.
void BlockCollectives::addSlot(uint32_t block, int64_t kept, int64_t updated) {
  plan::Cell &weight = role_.cells[weightCells_[block]];
  weight.arena = plan::Arena::Sym; // the target of gathers
  weight.type.shape[0] = kept;
  Type type = weight.type;
  type.shape[0] = updated;
  shardCells_[block] =
      addCell(role_, "ws." + plan_.blocks[block].name, {plan::CellKind::WeightShard, block}, type,
              plan::Arena::Sym, plan::Purpose::Params);
}

Op BlockCollectives::make(OpKind kind, ValueId operand, uint32_t block, plan::Phase phase,
                          Scope scope) {
  Op op = plan::makeOp(kind, {operand}, plan_.blocks[block].unit, loc_);
  op.phase = phase;
  bool isGather = kind == OpKind::AllGather;
  plan::setChannel(plan_, op,
                   scope == Scope::Shard ? channelOfShards(isGather)
                                         : channelOfWholes(isGather, plan_.blocks[block].group));
  op.set(Key::block, static_cast<int64_t>(block));
  if (!isGather && strategy_.average)
    op.set(Key::average, int64_t{1});
  return op;
}

plan::ChannelId BlockCollectives::channelOfWholes(bool isGather, int16_t group) {
  if (!isGather && !strategy_.shardsState)
    group = sumGroup_;
  plan::StreamKind stream = isGather ? plan::StreamKind::Gather : plan::StreamKind::Reduce;
  return plan::channelOf(plan_, group, stream, isGather ? gathers_ : reductions_,
                         plan::toString(stream));
}

/// Sums of shards follow the reductions that make these. Where shards are gathered as well, both
/// run beside what moves inside the groups, and share a communicator if their transport is one.
plan::ChannelId BlockCollectives::channelOfShards(bool isGather) {
  plan::StreamKind stream =
      strategy_.dividesShards() ? plan::StreamKind::Outer : plan::StreamKind::Reduce;
  bool isOwn = isGather && shardGathers_ != shardReductions_;
  return plan::channelOf(plan_, copyGroup_, stream, isGather ? shardGathers_ : shardReductions_,
                         isOwn ? "outer_gather" : "outer");
}

uint32_t BlockCollectives::blockOf(plan::CellKind kind, uint32_t cell) const {
  const plan::Cell &found = role_.cells[cell];
  return found.kind == kind ? static_cast<uint32_t>(found.of) : plan::kNone;
}

} // namespace shardc::passes
