// What moves the blocks of a role: the cells that the strategy of each block keeps of it, the
// groups and the transports of its collectives, and how one is made.
#pragma once

#include <vector>

#include "compiler/passes/Strategy.h"

namespace shardc::passes {

/// Whether a collective makes or takes whole blocks, or shards of them.
enum class Scope { Whole, Shard };

class BlockCollectives {
public:
  /// Adds the groups of the ranks that hold the same shards, where the plan lacks them.
  BlockCollectives(plan::Plan &plan, plan::Role &role);

  /// Gives the cells of blocks the types and arenas of their strategies, and adds those of shards.
  void changeCells();
  /// With channel, block and phase, but no results.
  plan::Op make(plan::OpKind kind, plan::ValueId operand, uint32_t block, plan::Phase phase,
                Scope scope = Scope::Whole);
  /// The block that a cell of this kind is of; kNone for cells of other kinds.
  uint32_t blockOf(plan::CellKind kind, uint32_t cell) const;

  const BlockStrategy &strategy(uint32_t block) const { return strategies_[block]; }
  const JobStrategy &job() const { return job_; }
  uint32_t size() const { return numBlocks_; } ///< blocks
  /// The line of the recipe that is the cause.
  uint32_t loc() const { return loc_; }
  uint32_t weightCell(uint32_t block) const { return weightCells_[block]; }
  uint32_t gradCell(uint32_t block) const { return gradCells_[block]; }
  /// What gathers of kept weights read; kNone if the block's strategy has none.
  uint32_t shardCell(uint32_t block) const { return shardCells_[block]; }
  /// kNone if the block's strategy does not divide the state.
  uint32_t gradShardCell(uint32_t block) const { return gradShardCells_[block]; }
  /// Several groups hold the same shards.
  bool hasCopies(uint32_t block) const { return classOf(block).copyGroup >= 0; }

private:
  /// What the blocks with the same groups have in common.
  struct Class {
    int16_t sumGroup;  ///< over which gradients are added
    int16_t copyGroup; ///< of the ranks that hold the same shards; -1: each is on one rank only
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
  uint32_t loc_;
  uint32_t numBlocks_;
  std::vector<uint32_t> weightCells_, gradCells_; ///< by block; kNone of blocks of other roles
  std::vector<Class> classes_;
  std::vector<size_t> classOf_;                       ///< by block
  std::vector<uint32_t> shardCells_, gradShardCells_; ///< by block
};

/// Gathers the weights that a segment uses: once a step into what is kept, or around each use.
void gatherWeights(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                   BlockCollectives &blocks);
/// Reduces the gradients that a segment makes.
void reduceGradients(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     BlockCollectives &blocks);

} // namespace shardc::passes
