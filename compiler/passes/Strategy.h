// The sharding strategy of each block, derived once from the plan's tables so that all passes
// agree. Blocks may differ in the ranks that shard them and in the ranks that sum their gradients.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Settings that all blocks share.
struct JobStrategy {
  int64_t microbatches = 1; ///< per rank and step
  bool average = false;     ///< reductions average instead of sum
  bool cutsParams = false;  ///< parameters are sharded over tensor-parallel ranks
  bool byParam = false;     ///< each parameter is a block of its own, as in PyTorch's FSDP2
  bool remainders = false;  ///< fp32 master weights are stored as bf16 weights plus 16 low bits
  DType wire = DType::F32, mainGrads = DType::F32, master = DType::F32;
};

/// The settings of the plan's job.
JobStrategy jobStrategyOf(const plan::Plan &plan);

/// The effective data_parallel_sharding_strategy of a block. On a single rank, a block is neither
/// sharded nor communicated.
struct BlockStrategy : JobStrategy {
  bool isTrained = true;         ///< if false, the block has only weights
  bool shardsState = false;      ///< `optim`, `optim_grads`, `optim_grads_params`
  /// `optim_grads`, `optim_grads_params`, unless gradients are reduced once per step
  bool shardsGrads = false;
  bool shardsParams = false;     ///< `optim_grads_params`
  int16_t group = -1;            ///< group whose ranks may shard weights and state
  int16_t stateGroup = -1;       ///< group that shards the optimizer state: `group` or a larger one
  int64_t ranks = 1;             ///< of `group`
  int64_t stateRanks = 1;        ///< number of shards of the state
  std::vector<uint16_t> sumAxes; ///< mesh axes over which gradients are summed
  int64_t sumRanks = 1;          ///< ranks along these axes
  /// Factor on gradients in addition to averaging. It is needed if a rank's gradient is already a
  /// sum over tokens of other ranks, or if gradients of the same tokens are added.
  double scale = 1;
  DType params = DType::F32; ///< the type in which layers compute

  /// Whether gradients of several microbatches are accumulated locally before they are reduced.
  bool accumulatesLocally() const { return isTrained && !shardsGrads && microbatches > 1; }
  /// Whether the weights are their own master copy.
  bool masterIsParam() const {
    return !isTrained || (params == master && !dividesShards() && (shardsParams || !shardsState));
  }
  /// Whether the bf16 weights are the high halves of the master weights and thus part of the saved
  /// state.
  bool keepsRemainders() const {
    return isTrained && remainders && params == DType::BF16 && master == DType::F32;
  }
  /// Whether optimizer state is sharded further than weights: ranks with the same shard of the
  /// weights then shard its state among them.
  bool dividesShards() const { return stateRanks > ranks; }
  /// Whether gathered weights are kept from step to step.
  bool keepsGathered() const { return shardsState && !shardsParams; }
  /// Number of ranks with the same part of the state.
  int64_t copies() const { return shardsState ? sumRanks / stateRanks : sumRanks; }
  /// Whether both use the same groups, so that their collectives can share groups and transports.
  bool isOfClass(const BlockStrategy &other) const {
    return isTrained == other.isTrained && group == other.group && stateGroup == other.stateGroup &&
           sumAxes == other.sumAxes;
  }
};

/// The strategy of one block, from its groups and class.
BlockStrategy strategyOf(const plan::Plan &plan, size_t block);
/// The strategy of each block.
std::vector<BlockStrategy> strategiesOf(const plan::Plan &plan);

/// Number of ranks with distinct tokens.
int64_t ranksOfTokens(const plan::Plan &plan);

/// The group over which gradients are summed: all ranks with other tokens (other samples, or other
/// slices of the same ones), unless the block specifies a group. Adds the group to the plan if
/// needed.
int16_t groupOfGradients(plan::Plan &plan, const BlockStrategy &strategy);

/// The number of shards of a block, and the number of parts into which the state of each shard is
/// split.
struct Division {
  int64_t shards = 1, parts = 1;
};
Division divisionOf(const plan::Plan &plan, size_t block);

/// Whether the collective's full-size value is a whole block, rather than a shard or other data.
bool movesWhole(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &collective);

} // namespace shardc::passes
