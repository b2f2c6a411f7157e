// Derives the strategy of a block from its groups, the parameter table and the job.
#include "compiler/passes/Strategy.h"

#include <algorithm>

#include "runtime/plan/Builder.h"

namespace shardc::passes {

namespace {

int64_t ranksAlong(const plan::Plan &plan, const std::vector<uint16_t> &axes) {
  int64_t ranks = 1;
  for (uint16_t axis : axes)
    ranks *= plan.mesh[axis].size;
  return ranks;
}

/// Whether the block is sharded between instances of the model, but not inside an instance.
bool isBetweenInstances(const plan::Plan &plan, const plan::Block &block) {
  int16_t outer = plan::groupOfKind(plan, plan::GroupKind::Outer);
  if (outer < 0 || block.group < 0)
    return false;
  const std::vector<uint16_t> &axes = plan.groups[static_cast<size_t>(block.group)].axes;
  return !axes.empty() && std::ranges::all_of(axes, [&](uint16_t axis) {
    return std::ranges::count(plan.groups[static_cast<size_t>(outer)].axes, axis) > 0;
  });
}

/// The block's strategy, without the type of its parameters.
BlockStrategy withGroups(const plan::Plan &plan, const JobStrategy &job, const plan::Block &block) {
  BlockStrategy strategy{job};
  strategy.isTrained = plan.classOf(block).isTrained;
  strategy.group = block.group;
  strategy.ranks = plan.groupSize(block.group);
  strategy.sumAxes = block.sumGroup < 0 ? plan::axesOfTokens(plan)
                                        : plan.groups[static_cast<size_t>(block.sumGroup)].axes;
  strategy.sumRanks = ranksAlong(plan, strategy.sumAxes);
  if (strategy.average)
    strategy.scale =
        static_cast<double>(strategy.sumRanks) / static_cast<double>(ranksOfTokens(plan));
  using enum plan::Job::ShardingStrategy;
  plan::Job::ShardingStrategy asked = plan.job.derived.strategy;
  if (asked == OptimGradsParams && isBetweenInstances(plan, block))
    asked = Optim; // between instances, only state is sharded
  bool isKept = plan.job.ddp.keepFrozen == plan::Job::KeepFrozen::Always;
  if (!strategy.isTrained && (asked != OptimGradsParams || isKept))
    asked = NoShard; // frozen weights have no state
  if (strategy.ranks > 1) {
    strategy.shardsParams = asked == OptimGradsParams;
    strategy.shardsState = asked != NoShard;
    strategy.shardsGrads =
        asked >= OptimGrads && plan.job.ddp.reduceGrads != plan::Job::ReduceGrads::EachStep;
  }
  strategy.stateGroup =
      strategy.shardsParams && strategy.isTrained ? block.stateGroup : block.group;
  strategy.stateRanks = plan.groupSize(strategy.stateGroup);
  return strategy;
}

} // namespace

JobStrategy jobStrategyOf(const plan::Plan &plan) {
  JobStrategy strategy;
  strategy.microbatches = plan.job.derived.numMicrobatches;
  strategy.average = plan.job.ddp.averageInCollective && !plan.job.model.calculatePerTokenLoss;
  strategy.byParam = plan.job.dist.useTorchFsdp2;
  strategy.remainders = plan.job.optimizer.usePrecisionAwareOptimizer &&
                        plan.job.optimizer.storeParamRemainders &&
                        plan.job.optimizer.optimizer == plan::Job::OptimizerKind::Adam;
  strategy.cutsParams = std::ranges::any_of(
      plan.params, [](const plan::Param &param) { return !param.splits.empty(); });
  strategy.wire = plan.job.derived.wire;
  strategy.mainGrads = plan.job.derived.mainGrads;
  strategy.master = plan.job.derived.master;
  return strategy;
}

BlockStrategy strategyOf(const plan::Plan &plan, size_t block) {
  BlockStrategy strategy = withGroups(plan, jobStrategyOf(plan), plan.blocks[block]);
  auto param = std::ranges::find(plan.params, static_cast<int32_t>(block), &plan::Param::block);
  if (param != plan.params.end())
    strategy.params = param->type.dtype;
  return strategy;
}

std::vector<BlockStrategy> strategiesOf(const plan::Plan &plan) {
  JobStrategy job = jobStrategyOf(plan);
  std::vector<BlockStrategy> strategies;
  strategies.reserve(plan.blocks.size());
  for (const plan::Block &block : plan.blocks)
    strategies.push_back(withGroups(plan, job, block));
  for (size_t p = plan.params.size(); p-- > 0;) // backwards: a block's first parameter wins
    if (int32_t block = plan.params[p].block; block >= 0)
      strategies[static_cast<size_t>(block)].params = plan.params[p].type.dtype;
  return strategies;
}

int64_t ranksOfTokens(const plan::Plan &plan) { return ranksAlong(plan, plan::axesOfTokens(plan)); }

int16_t groupOfGradients(plan::Plan &plan, const BlockStrategy &strategy) {
  return plan::groupOf(plan, strategy.sumAxes, "tokens");
}

Division divisionOf(const plan::Plan &plan, size_t block) {
  BlockStrategy strategy = strategyOf(plan, block);
  if (!strategy.shardsState)
    return {};
  return {strategy.ranks, strategy.stateRanks / strategy.ranks};
}

bool movesWhole(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &collective) {
  int64_t block = collective.getInt(plan::AttrKey::block);
  return block >= 0 && segment.values[plan::wholeOf(collective)].type.numel() ==
                           plan.blocks[static_cast<size_t>(block)].numel;
}

} // namespace shardc::passes
