// The sharding strategy of a plan, read from its job table in one place, so that all passes agree.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The effective data_parallel_sharding_strategy. A single rank neither shards nor communicates.
struct Strategy {
  bool shardsState = false;  ///< optim and above
  bool shardsGrads = false;  ///< optim_grads and above
  bool shardsParams = false; ///< optim_grads_params
  int16_t group = -1;        ///< among whose ranks state may be divided
  int64_t ranks = 1;         ///< of this group
  int64_t stateRanks = 1;    ///< among whom state is divided: these, or more
  int64_t dataRanks = 1;     ///< of the group over which gradients are added
  int64_t microbatches = 1;
  bool average = false;    ///< reductions divide by the ranks
  bool cutsParams = false; ///< ranks that see the same samples have parts of parameters
  bool byParam = false;    ///< each parameter is a block: PyTorch's FSDP2
  DType params = DType::F32, wire = DType::F32, mainGrads = DType::F32, master = DType::F32;

  /// Gradients of several microbatches are summed on each rank before they are reduced.
  bool accumulatesLocally() const { return !shardsGrads && microbatches > 1; }
  /// The optimizer updates the same weights that layers compute with.
  bool masterIsParam() const {
    return params == master && !dividesShards() && (shardsParams || !shardsState);
  }
  /// Each rank has the state of a part of its shard; others that hold this shard have the rest.
  bool dividesShards() const { return stateRanks > ranks; }
  /// Ranks that hold the same part of the state.
  int64_t copies() const { return shardsState ? dataRanks / stateRanks : dataRanks; }
};

Strategy readStrategy(const plan::Plan &plan);

/// The group over which gradients are added: of all ranks that have other tokens, of other samples
/// or of the same ones. It is added if the plan lacks it.
int16_t groupOfGradients(plan::Plan &plan);

/// Into how many shards a block is divided, and into how many parts each of these.
struct Division {
  int64_t shards = 1, parts = 1;
};
Division divisionOf(const plan::Plan &plan);

/// Whether the collective makes or takes a whole block: not a shard of one, and no other data.
bool movesWhole(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &collective);

} // namespace shardc::passes
