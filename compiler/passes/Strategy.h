// What the strategy of a plan means, read from its job table. One place, so that passes agree.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// data_parallel_sharding_strategy as it takes effect. One rank shards nothing and moves nothing.
struct Strategy {
  bool shardsState = false;  ///< optim and above
  bool shardsGrads = false;  ///< optim_grads and above
  bool shardsParams = false; ///< optim_grads_params
  int64_t ranks = 1;         ///< of the group that shards or reduces
  int64_t microbatches = 1;
  bool average = false; ///< reductions divide by the ranks
  DType params = DType::F32, wire = DType::F32, mainGrads = DType::F32, master = DType::F32;

  /// Gradients of several microbatches are summed on each rank before they travel.
  bool accumulatesLocally() const { return !shardsGrads && microbatches > 1; }
  /// The weights that layers compute with are themselves what the optimizer updates.
  bool masterIsParam() const { return params == master && (shardsParams || !shardsState); }
};

Strategy readStrategy(const plan::Plan &plan);

/// Into how many shards blocks are cut.
int64_t stateShards(const plan::Plan &plan);

} // namespace shardc::passes
