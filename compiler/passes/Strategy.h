// The sharding strategy of each block of a plan, read from its tables in one place, so that all
// passes agree. Blocks may differ: in the ranks that divide them, in those that add their
// gradients.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// What holds for all blocks.
struct JobStrategy {
  int64_t microbatches = 1;
  bool average = false;    ///< reductions divide by the ranks
  bool cutsParams = false; ///< ranks that see the same samples have parts of parameters
  bool byParam = false;    ///< each parameter is a block: PyTorch's FSDP2
  bool remainders = false; ///< masters of weights in bf16 are these and 16 bits beside them
  DType wire = DType::F32, mainGrads = DType::F32, master = DType::F32;
};

JobStrategy jobStrategyOf(const plan::Plan &plan);

/// The effective data_parallel_sharding_strategy of a block. A single rank neither shards nor
/// communicates.
struct BlockStrategy : JobStrategy {
  bool isTrained = true;         ///< else it has weights alone, which are divided or whole
  bool shardsState = false;      ///< optim and above
  bool shardsGrads = false;      ///< optim_grads and above
  bool shardsParams = false;     ///< optim_grads_params
  int16_t group = -1;            ///< among whose ranks state may be divided
  int16_t stateGroup = -1;       ///< the same, or with more ranks
  int64_t ranks = 1;             ///< of `group`
  int64_t stateRanks = 1;        ///< among whom state is divided: these, or more
  std::vector<uint16_t> sumAxes; ///< along which gradients are added
  int64_t sumRanks = 1;          ///< that differ along these
  /// Of gradients, beside the averages of their sums: a rank's gradient may be a sum over tokens of
  /// other ranks already, or gradients of the same tokens may be added.
  double scale = 1;
  DType params = DType::F32;

  /// Gradients of several microbatches are summed on each rank before they are reduced.
  bool accumulatesLocally() const { return isTrained && !shardsGrads && microbatches > 1; }
  /// The optimizer updates the same weights that layers compute with, or none.
  bool masterIsParam() const {
    return !isTrained || (params == master && !dividesShards() && (shardsParams || !shardsState));
  }
  /// Weights are halves of their masters, and state that is saved and handed on.
  bool keepsRemainders() const {
    return isTrained && remainders && params == DType::BF16 && master == DType::F32;
  }
  /// Each rank has the state of a part of its shard; others that hold this shard have the rest.
  bool dividesShards() const { return stateRanks > ranks; }
  /// Weights are gathered into what is kept from one step to the next.
  bool keepsGathered() const { return shardsState && !shardsParams; }
  /// Ranks that hold the same part of the state.
  int64_t copies() const { return shardsState ? sumRanks / stateRanks : sumRanks; }
  /// Same groups: what differs is in the parameters.
  bool isOfClass(const BlockStrategy &other) const {
    return isTrained == other.isTrained && group == other.group && stateGroup == other.stateGroup &&
           sumAxes == other.sumAxes;
  }
};

BlockStrategy strategyOf(const plan::Plan &plan, size_t block);
/// By block.
std::vector<BlockStrategy> strategiesOf(const plan::Plan &plan);

/// Ranks that have other tokens than all others.
int64_t ranksOfTokens(const plan::Plan &plan);

/// The group over which gradients are added: of all ranks that have other tokens, of other samples
/// or of the same ones, unless the block names another one. It is added if the plan lacks it.
int16_t groupOfGradients(plan::Plan &plan, const BlockStrategy &strategy);

/// Into how many shards a block is divided, and into how many parts each of these.
struct Division {
  int64_t shards = 1, parts = 1;
};
Division divisionOf(const plan::Plan &plan, size_t block);

/// Whether the collective makes or takes a whole block: not a shard of one, and no other data.
bool movesWhole(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &collective);

} // namespace shardc::passes
