// Finds the cells, groups and transports of each class of blocks, and creates their collectives.
#include "compiler/passes/BlockCollectives.h"

#include <algorithm>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

/// The transport of a collective on these blocks, or on their shards. All blocks must have the same
/// strategy.
plan::Transport chooseWay(const plan::Plan &plan, const std::vector<BlockStrategy> &strategies,
                          const std::vector<uint32_t> &blocks, CollectiveKind kind, int16_t group,
                          Scope scope = Scope::Whole) {
  bool isGather = kind == CollectiveKind::AllGather;
  predict::Traffic traffic = predict::trafficOf(plan, kind, group);
  for (uint32_t b : blocks)
    traffic.wholeBytes.push_back(
        (scope == Scope::Shard ? plan.blocks[b].shard : plan.blocks[b].numel) *
        dtypeBytes(isGather ? strategies[b].params : strategies[b].wire));
  traffic.isDeterministic = plan.job.model.deterministicMode;
  // A window needs both buffers in arena sym, but weights that are halves of master weights lie in
  // arena state.
  if (std::ranges::any_of(blocks, [&](uint32_t b) { return strategies[b].keepsRemainders(); }))
    traffic.hasWindows = traffic.hasWindows && !isGather;
  return predict::chooseTransport(predict::deviceOf(plan), traffic);
}

/// The group of ranks that hold the same shard, or -1 if each shard is on one rank only. Adds the
/// group to the plan if needed.
int16_t groupOfCopies(plan::Plan &plan, const BlockStrategy &strategy) {
  if (!strategy.shardsState || strategy.sumRanks == strategy.ranks)
    return -1;
  std::vector<uint16_t> axes = strategy.sumAxes;
  for (uint16_t axis : plan.groups[static_cast<size_t>(strategy.group)].axes)
    std::erase(axes, axis);
  return plan::groupOf(plan, std::move(axes));
}

} // namespace

BlockCollectives::BlockCollectives(plan::Plan &plan, plan::Role &role)
    : plan_(plan), role_(role), job_(jobStrategyOf(plan)), strategies_(strategiesOf(plan)),
      runs_(role), contributors_(plan.blocks.size()),
      loc_(jobLoc(plan, plan.job.derived.locStrategy)),
      numBlocks_(static_cast<uint32_t>(plan.blocks.size())),
      weightCells_(plan::findCells(role, plan::CellKind::Weight, numBlocks_)),
      gradCells_(plan::findCells(role, plan::CellKind::Gradient, numBlocks_)),
      shardCells_(numBlocks_, plan::kNone), gradShardCells_(numBlocks_, plan::kNone) {
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (const plan::Segment::Boundary &out : role.segments[s].outs)
      if (uint32_t block = blockOf(plan::CellKind::Gradient, out.cell);
          block != plan::kNone && role.segments[s].body)
        contributors_[block].push_back(s);
  for (uint32_t b = 0; b < numBlocks_; ++b) // each adds to what the others have left
    strategies_[b].microbatches *= std::max<int64_t>(std::ssize(contributors_[b]), 1);
  findClasses();
}

/// Blocks with equal strategies form a class, whose collectives are chosen once.
void BlockCollectives::findClasses() {
  std::vector<std::vector<uint32_t>> members;
  for (uint32_t b = 0; b < numBlocks_; ++b) {
    auto at = std::ranges::find_if(members, [&](const std::vector<uint32_t> &blocks) {
      return strategies_[blocks.front()].isOfClass(strategies_[b]);
    });
    classOf_.push_back(static_cast<size_t>(at - members.begin()));
    if (at == members.end())
      members.emplace_back();
    members[classOf_.back()].push_back(b);
  }
  for (const std::vector<uint32_t> &blocks : members)
    classes_.push_back(makeClass(blocks));
}

BlockCollectives::Class BlockCollectives::makeClass(const std::vector<uint32_t> &blocks) {
  const BlockStrategy &strategy = strategies_[blocks.front()];
  Class each{};
  each.sumGroup = groupOfGradients(plan_, strategy);
  each.copyGroup = groupOfCopies(plan_, strategy);
  auto choose = [&](CollectiveKind kind, int16_t group, Scope scope = Scope::Whole) {
    return chooseWay(plan_, strategies_, blocks, kind, group, scope);
  };
  each.gathers = choose(CollectiveKind::AllGather, strategy.group);
  each.reductions = strategy.shardsState ? choose(CollectiveKind::ReduceScatter, strategy.group)
                                         : choose(CollectiveKind::AllReduce, each.sumGroup);
  each.shardReductions =
      choose(strategy.dividesShards() ? CollectiveKind::ReduceScatter : CollectiveKind::AllReduce,
             each.copyGroup, Scope::Shard);
  each.shardGathers = choose(CollectiveKind::AllGather, each.copyGroup, Scope::Shard);
  return each;
}

void BlockCollectives::changeCells() {
  for (uint32_t b = 0; b < numBlocks_; ++b)
    if (weightCells_[b] != plan::kNone) // the role has the block
      changeCell(b);
}

void BlockCollectives::changeCell(uint32_t b) {
  const plan::Block &block = plan_.blocks[b];
  const BlockStrategy &strategy = strategies_[b];
  plan::Cell &weight = role_.cells[weightCells_[b]];
  if (strategy.dividesShards()) {
    addSlot(b, block.shard, block.stateShard);
  } else if (strategy.shardsParams) {
    weight.type.shape[0] = block.shard;
    // A gather by copy engines needs registered buffers at both ends. A weight that is its own
    // master stays in arena state, because it is saved.
    if (classOf(b).gathers == plan::Transport::Ce && !strategy.masterIsParam())
      weight.arena = plan::Arena::Sym;
  } else if (strategy.shardsState) {
    addSlot(b, block.numel, block.shard);
  }
  if (!strategy.isTrained)
    return;
  if (strategy.shardsState)
    gradShardCells_[b] = addCell(role_, "gs." + block.name, {plan::CellKind::GradientShard, b},
                                 Type::of(strategy.mainGrads, {block.shard}), plan::Arena::Work,
                                 plan::Purpose::Grads);
  if (strategy.accumulatesLocally())
    role_.cells[gradCells_[b]].type.dtype = strategy.mainGrads;
}

/// Adds the cell of a block's gathered weights. Once per step, ranks gather them from the shards
/// that they update.
void BlockCollectives::addSlot(uint32_t block, int64_t kept, int64_t updated) {
  plan::Cell &weight = role_.cells[weightCells_[block]];
  // The gathered weights contain this rank's shard, so both cells lie in one arena: in arena state
  // if the shard is saved.
  plan::Arena arena = strategies_[block].keepsRemainders() ? plan::Arena::State : plan::Arena::Sym;
  weight.arena = arena;
  weight.type.shape[0] = kept;
  Type type = weight.type;
  type.shape[0] = updated;
  shardCells_[block] =
      addCell(role_, "ws." + plan_.blocks[block].name, {plan::CellKind::WeightShard, block}, type,
              arena, plan::Purpose::Params);
}

Op BlockCollectives::make(OpKind kind, ValueId operand, uint32_t block, plan::Phase phase,
                          Scope scope) {
  Op op = plan::makeOp(kind, {operand}, plan_.blocks[block].unit, loc_);
  op.phase = phase;
  bool isGather = kind == OpKind::AllGather;
  plan::setChannel(plan_, op,
                   scope == Scope::Shard ? channelOfShards(isGather, block)
                                         : channelOfWholes(isGather, block));
  op.set(Key::block, static_cast<int64_t>(block));
  if (!isGather && strategies_[block].average)
    op.set(Key::average, int64_t{1});
  return op;
}

plan::ChannelId BlockCollectives::channelOfWholes(bool isGather, uint32_t block) {
  const Class &each = classOf(block);
  bool isWhole = !isGather && !strategies_[block].shardsState;
  int16_t group = isWhole ? each.sumGroup : plan_.blocks[block].group;
  plan::StreamKind stream = isGather ? plan::StreamKind::Gather : plan::StreamKind::Reduce;
  return plan::channelOf(plan_, group, stream, isGather ? each.gathers : each.reductions,
                         plan::toString(stream));
}

/// Reductions of a shard over its copies follow the reductions inside the groups, on whose result
/// they work. If shards are also gathered, both kinds run concurrently with the collectives inside
/// the groups. They share one communicator if they use the same transport.
plan::ChannelId BlockCollectives::channelOfShards(bool isGather, uint32_t block) {
  const Class &each = classOf(block);
  plan::StreamKind stream =
      strategies_[block].dividesShards() ? plan::StreamKind::Outer : plan::StreamKind::Reduce;
  bool isOwn = isGather && each.shardGathers != each.shardReductions;
  return plan::channelOf(plan_, each.copyGroup, stream,
                         isGather ? each.shardGathers : each.shardReductions,
                         isOwn ? "outer_gather" : "outer");
}

uint32_t BlockCollectives::blockOf(plan::CellKind kind, uint32_t cell) const {
  const plan::Cell &found = role_.cells[cell];
  return found.kind == kind ? static_cast<uint32_t>(found.of) : plan::kNone;
}

} // namespace shardc::passes
