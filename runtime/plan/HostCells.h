// Cells that the host reads or writes, and the part of them that each rank saves. Ranks share the
// work of saving replicated state: each saves the rows that begin in its part of a block, so that
// every rank saves the same number of bytes.
#pragma once

#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- cells by their kinds ----

/// True for a cell that only the host writes.
bool isWrittenByHost(const Cell &cell);

/// True for a ring that the host fills with microbatches.
bool isFeed(const Cell &cell);

/// For a cell with the low 16 bits of master weights: the cell with the bf16 weights, which are
/// their high 16 bits (runtime/base/Remainder.h). kNone for any other cell.
uint32_t upperHalfOf(const Role &role, uint32_t cell);
/// The two cells that together hold fp32 master weights.
struct MasterCells {
  uint32_t lower, upper;
};
/// All such pairs of the role.
std::vector<MasterCells> halvedMasters(const Role &role);
/// Whether the cell has the low halves of master weights.
inline bool isRemainder(const Cell &cell) {
  return cell.kind == CellKind::Master && cell.type.dtype == DType::U16;
}

// Three questions about a cell are independent: whether a load fills it, whether a save reads it,
// and whether steps update it. Loads fill frozen weights, which no step updates. Loads also fill
// the weights of a base model under adapters, which no save reads. A block's class says whether it
// is updated.

/// For each cell of the role, the block whose state a load fills in it: weights that the optimizer
/// updates, frozen weights, and moments. Null for cells that no load fills or that belong to no
/// block.
std::vector<const Block *> loadedBlocks(const Plan &plan, const Role &role);
/// For each cell of the role, the block whose state a save reads from it, or null. Roles may still
/// share the work: see savesBlock().
std::vector<const Block *> savedBlocks(const Plan &plan, const Role &role);
/// The cells that belong to these blocks, and the cells that are saved and loaded but belong to no
/// block: the step state, the amax history, the biases of experts, and the scales of blocks that
/// are 8-bit weights.
std::vector<bool> cellsOfState(const Role &role, const std::vector<const Block *> &blocks);

// ---- the part of the state that a rank saves ----

/// How replicated ranks divide the saving of a block. The rank with index i in the block's state
/// group saves the elements from `step` · i up to the next rank's begin; the last one saves up to
/// the block's end. A rank copies `length` elements from its start on, which covers every row that
/// begins in its part.
struct StateShare {
  int64_t step = 0, length = 0;

  bool isShared() const { return step > 0; }
};

/// The division of a block that every rank of its state group holds in full. Not divided if the
/// state is sharded, if the group has one rank, or if the block is too small for whole rows.
StateShare stateShareOf(const Plan &plan, int32_t block);
/// The division of a block of `numel` elements whose longest row has `longestRow`.
StateShare stateShareOf(int64_t numel, int64_t longestRow, int64_t ranks);

/// Bytes that the role's background segments copy to the host.
int64_t snapshotBytes(const Role &role);
/// Bytes that these segments first copy within the device.
int64_t stagedBytes(const Role &role);
/// Host copies of a rank's state for in-memory checkpoints (`checkpoint.in_memory_interval`), in
/// addition to the plan's own: two generations of its state, and two of the rank whose replica it
/// keeps.
inline constexpr int64_t kImagesPerRank = 4;
/// Host copies of a rank's state while an asynchronous save is written, which needs a copy of its
/// own.
inline constexpr int64_t kImagesBesideSave = kImagesPerRank + 1;

/// Whether the block has frozen weights of a base model under adapters. Saves omit them, and loads
/// read them from the base checkpoint.
bool isOfBase(const Plan &plan, const Block &block);
/// Whether the parameter is one of the two low-rank matrices of an adapter, or its magnitude.
bool isOfAdapter(const Param &param);
/// The weight of a DoRA magnitude: the magnitude's initial values are the norms of that weight's
/// rows. Nothing if `name` is not a magnitude.
std::optional<std::string> weightOfMagnitude(std::string_view name);

/// Whether ranks of the role save the block. They do not save a block that an earlier role also
/// holds, nor blocks of the base model under adapters.
bool savesBlock(const Plan &plan, uint32_t role, int32_t block);

/// A range of a cell's elements.
struct CellPart {
  uint32_t cell = kNone; ///< index in Role::cells
  Moving begin;          ///< index of the part's first element
};

/// For each value of the segment, the part of a cell that it aliases, as a live-in value or as a
/// view of one. Computed values have no cell; neither do views whose offset depends on several
/// groups.
std::vector<CellPart> partsOfCells(const Plan &plan, const Segment &segment);

/// The background segment that completes before this one starts and whose device copies this one
/// continues to the host; null if there is none.
const Segment *stagedBy(const Role &role, const Segment &segment);
/// partsOfCells() for a background segment. A value that another background segment staged counts
/// as the part of the cell that was staged; after that segment no other value is part of a cell.
std::vector<CellPart> partsOfState(const Plan &plan, const Role &role, const Segment &segment);

} // namespace shardc::plan
