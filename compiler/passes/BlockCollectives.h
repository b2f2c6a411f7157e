// What moves the blocks of a role: the cells that a strategy keeps of each block, the group and the
// transport of each kind of collective, and how one is made.
#pragma once

#include <vector>

#include "compiler/passes/Strategy.h"

namespace shardc::passes {

/// Whether a collective makes or takes whole blocks, or shards of them.
enum class Scope { Whole, Shard };

class BlockCollectives {
public:
  /// Adds the group of the ranks that hold the same shards, where the plan lacks it.
  BlockCollectives(plan::Plan &plan, plan::Role &role);

  /// Gives the cells of blocks the types and arenas of the strategy, and adds those of shards.
  void changeCells();
  /// With channel, block and phase, but no results.
  plan::Op make(plan::OpKind kind, plan::ValueId operand, uint32_t block, plan::Phase phase,
                Scope scope = Scope::Whole);
  /// The block that a cell of this kind is of; kNone for cells of other kinds.
  uint32_t blockOf(plan::CellKind kind, uint32_t cell) const;

  const Strategy &strategy() const { return strategy_; }
  uint32_t size() const { return numBlocks_; } ///< blocks
  /// The line of the recipe that is the cause.
  uint32_t loc() const { return loc_; }
  uint32_t weightCell(uint32_t block) const { return weightCells_[block]; }
  uint32_t gradCell(uint32_t block) const { return gradCells_[block]; }
  /// What gathers of kept weights read; of strategies that keep gathered weights.
  uint32_t shardCell(uint32_t block) const { return shardCells_[block]; }
  /// Of strategies that divide the state.
  uint32_t gradShardCell(uint32_t block) const { return gradShardCells_[block]; }
  /// Several groups hold the same shards.
  bool hasCopies() const { return copyGroup_ >= 0; }

private:
  void addSlot(uint32_t block, int64_t kept, int64_t updated);
  plan::ChannelId channelOfWholes(bool isGather, int16_t group);
  plan::ChannelId channelOfShards(bool isGather);

  plan::Plan &plan_;
  plan::Role &role_;
  Strategy strategy_;
  uint32_t loc_;
  uint32_t numBlocks_;
  std::vector<uint32_t> weightCells_, gradCells_; ///< by block; kNone of blocks of other roles
  int16_t sumGroup_;                              ///< over which gradients are added
  int16_t copyGroup_;                             ///< of the ranks that hold the same shards
  plan::Transport gathers_, reductions_, shardReductions_, shardGathers_;
  std::vector<uint32_t> shardCells_,
      gradShardCells_; ///< by block; empty if the strategy has none
};

/// Gathers the weights that a segment uses: once a step into what is kept, or around each use.
void gatherWeights(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                   BlockCollectives &blocks);
/// Reduces the gradients that a segment makes.
void reduceGradients(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     BlockCollectives &blocks);

} // namespace shardc::passes
