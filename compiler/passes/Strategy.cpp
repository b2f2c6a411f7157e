#include "compiler/passes/Strategy.h"

#include <algorithm>

#include "runtime/plan/Builder.h"

namespace shardc::passes {

namespace {

/// Of the ranks that have other tokens.
std::vector<uint16_t> axesOfTokens(const plan::Plan &plan) {
  if (plan.dataGroup < 0)
    return {}; // every rank has the same samples
  std::vector<uint16_t> axes = plan.groups[static_cast<size_t>(plan.dataGroup)].axes;
  if (int64_t context = plan.job.derived.contextGroup; context >= 0) {
    const std::vector<uint16_t> &more = plan.groups[static_cast<size_t>(context)].axes;
    axes.insert(axes.end(), more.begin(), more.end());
  }
  return axes;
}

} // namespace

int16_t groupOfGradients(plan::Plan &plan) {
  return plan::groupOf(plan, axesOfTokens(plan), "tokens");
}

Strategy readStrategy(const plan::Plan &plan) {
  Strategy strategy;
  strategy.group = plan.blocks.empty() ? int16_t{-1} : plan.blocks.front().group;
  strategy.ranks = plan.groupSize(strategy.group);
  strategy.dataRanks = 1;
  for (uint16_t axis : axesOfTokens(plan))
    strategy.dataRanks *= plan.mesh[axis].size;
  strategy.microbatches = plan.job.derived.numMicrobatches;
  strategy.average = plan.job.ddp.averageInCollective && !plan.job.model.calculatePerTokenLoss;
  strategy.byParam = plan.job.dist.useTorchFsdp2;
  strategy.cutsParams = std::ranges::any_of(
      plan.params, [](const plan::Param &param) { return !param.splits.empty(); });
  strategy.wire = plan.job.derived.wire;
  strategy.mainGrads = plan.job.derived.mainGrads;
  strategy.master = plan.job.derived.master;
  if (!plan.params.empty())
    strategy.params = plan.params.front().type.dtype;
  using enum plan::Job::ShardingStrategy;
  plan::Job::ShardingStrategy asked = plan.job.derived.strategy;
  if (strategy.ranks > 1) {
    strategy.shardsParams = asked == OptimGradsParams;
    strategy.shardsGrads = strategy.shardsParams || asked == OptimGrads;
    strategy.shardsState = strategy.shardsGrads || asked == Optim;
  }
  strategy.stateRanks =
      strategy.shardsParams ? plan.groupSize(plan.blocks.front().stateGroup) : strategy.ranks;
  return strategy;
}

Division divisionOf(const plan::Plan &plan) {
  Strategy strategy = readStrategy(plan);
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
