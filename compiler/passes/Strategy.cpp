#include "compiler/passes/Strategy.h"

namespace shardc::passes {

Strategy readStrategy(const plan::Plan &plan) {
  Strategy strategy;
  strategy.ranks = plan.groups.empty() ? 1 : plan.groupSize(0);
  strategy.microbatches = plan.jobInt("derived.num_microbatches", 1);
  strategy.average = plan.jobBool("ddp.average_in_collective", false) &&
                     !plan.jobBool("model.calculate_per_token_loss", false);
  auto dtype = [&](const char *path) {
    return parseDType(plan.jobString(path, "f32")).value_or(DType::F32);
  };
  strategy.wire = dtype("derived.wire");
  strategy.mainGrads = dtype("derived.main_grads");
  strategy.master = dtype("derived.master");
  if (!plan.params.empty())
    strategy.params = plan.params.front().type.dtype;
  std::string name = plan.jobString("derived.strategy", "no_shard");
  if (strategy.ranks > 1) {
    strategy.shardsParams = name == "optim_grads_params";
    strategy.shardsGrads = strategy.shardsParams || name == "optim_grads";
    strategy.shardsState = strategy.shardsGrads || name == "optim";
  }
  return strategy;
}

int64_t stateShards(const plan::Plan &plan) {
  Strategy strategy = readStrategy(plan);
  return strategy.shardsState ? strategy.ranks : 1;
}

} // namespace shardc::passes
