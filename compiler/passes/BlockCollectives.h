// Collectives on the blocks of a role: the cells that each block's sharding strategy needs, and the
// group and transport of its gathers and reductions.
#pragma once

#include <vector>

#include "compiler/passes/RunOrder.h"
#include "compiler/passes/Strategy.h"

namespace shardc::passes {

/// Whether a collective's full-size value is a whole block or one rank's shard of it.
enum class Scope { Whole, Shard };

/// The cells and collectives of one role's blocks. Changes the plan and the role, which must
/// outlive it.
class BlockCollectives {
public:
  /// Adds the groups of ranks that replicate shards, if the plan lacks them.
  BlockCollectives(plan::Plan &plan, plan::Role &role);

  /// Changes the cells of blocks to the types and arenas of their strategies, and adds cells of
  /// shards.
  void changeCells();
  /// Creates a collective with channel, block and phase, but without results.
  plan::Op make(plan::OpKind kind, plan::ValueId operand, uint32_t block, plan::Phase phase,
                Scope scope = Scope::Whole);
  /// The block of a cell, if the cell has this kind; otherwise kNone.
  uint32_t blockOf(plan::CellKind kind, uint32_t cell) const;

  const BlockStrategy &strategy(uint32_t block) const { return strategies_[block]; }
  const JobStrategy &job() const { return job_; }
  const RunOrder &runs() const { return runs_; }
  /// The number of a segment of the role.
  uint32_t indexOf(const plan::Segment &segment) const {
    return static_cast<uint32_t>(&segment - role_.segments.data());
  }
  /// The segments that contribute to the block's gradient.
  const std::vector<uint32_t> &contributors(uint32_t block) const { return contributors_[block]; }
  uint32_t size() const { return numBlocks_; } ///< blocks
  /// Index in Plan::locs of the recipe line that caused the collectives.
  uint32_t loc() const { return loc_; }
  /// The cells with the weights and with the gradient of a block; kNone for blocks of other roles.
  uint32_t weightCell(uint32_t block) const { return weightCells_[block]; }
  uint32_t gradCell(uint32_t block) const { return gradCells_[block]; }
  /// The cell with this rank's shard, which gathers of cached weights read; kNone if the block's
  /// strategy has none.
  uint32_t shardCell(uint32_t block) const { return shardCells_[block]; }
  /// The cell with this rank's shard of the gradient; kNone if the strategy does not shard the
  /// state.
  uint32_t gradShardCell(uint32_t block) const { return gradShardCells_[block]; }
  /// Whether several groups replicate the shards (HSDP).
  bool hasCopies(uint32_t block) const { return classOf(block).copyGroup >= 0; }

private:
  /// Groups and transports that several blocks share.
  struct Class {
    int16_t sumGroup;  ///< the ranks that sum gradients
    int16_t copyGroup; ///< the ranks that hold the same shard; -1: each shard is on one rank only
    plan::Transport gathers, reductions, shardReductions, shardGathers;
  };
  void findClasses();
  Class makeClass(const std::vector<uint32_t> &blocks);
  const Class &classOf(uint32_t block) const { return classes_[classOf_[block]]; }
  void changeCell(uint32_t block);
  void addSlot(uint32_t block, int64_t kept, int64_t updated);
  plan::ChannelId channelOfWholes(bool isGather, uint32_t block);
  plan::ChannelId channelOfShards(bool isGather, uint32_t block);

  plan::Plan &plan_;
  plan::Role &role_;
  JobStrategy job_;
  std::vector<BlockStrategy> strategies_; ///< by block
  RunOrder runs_;
  std::vector<std::vector<uint32_t>> contributors_; ///< by block
  uint32_t loc_;
  uint32_t numBlocks_;
  std::vector<uint32_t> weightCells_, gradCells_; ///< by block; kNone for blocks of other roles
  std::vector<Class> classes_;
  std::vector<size_t> classOf_;                       ///< by block
  std::vector<uint32_t> shardCells_, gradShardCells_; ///< by block
};

/// Inserts all-gathers of the weights that a segment uses: once per step if the gathered weights
/// are kept, otherwise around each use.
void gatherWeights(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                   BlockCollectives &blocks);
/// Inserts the reductions of the gradients that a segment computes.
void reduceGradients(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     BlockCollectives &blocks);

} // namespace shardc::passes
