// Cells that the host reads or writes, and what each rank saves of them. Ranks divide the saving of
// replicated state: each saves the rows that begin in its part of the block, so that the snapshot
// has the same size on every rank.
#pragma once

#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- cells by their kinds ----

/// True for a cell that only the host writes.
bool isWrittenByHost(const Cell &cell);
/// True for a cell whose content the host reads after each step.
bool isReadByHost(const Cell &cell);

/// True for a ring of microbatches.
bool isFeed(const Cell &cell);

/// Where a cell of master weights has remainders, their low 16 bits: the cell of the role with the
/// weights in bf16 which, together with these, are the master weights; kNone for other cells, and
/// where there is none (runtime/base/Remainder.h).
uint32_t upperHalfOf(const Role &role, uint32_t cell);
/// Two cells that together hold master weights.
struct MasterCells {
  uint32_t lower, upper;
};
/// All of the role.
std::vector<MasterCells> halvedMasters(const Role &role);
inline bool isRemainder(const Cell &cell) {
  return cell.kind == CellKind::Master && cell.type.dtype == DType::U16;
}

/// For each cell of the role, whether a checkpoint holds its content: the step state, the
/// history of magnitudes, and of each block the weights that the optimizer has and the moments.
std::vector<bool> cellsInCheckpoint(const Plan &plan, const Role &role);
/// For each cell of the role the block of whose state a checkpoint holds it; null for other cells,
/// also for those that are of no block.
std::vector<const Block *> blocksInCheckpoint(const Plan &plan, const Role &role);
/// The first from the second.
std::vector<bool> cellsInCheckpoint(const Role &role, const std::vector<const Block *> &blocks);

// ---- what a rank saves ----

/// The stretch of the rank with index i in the block's group of state begins at element `step` * i
/// and ends where the next one begins, the last at the block's end. `length` elements from its
/// begin on hold every row that begins in it.
struct StateShare {
  int64_t step = 0, length = 0;

  bool isShared() const { return step > 0; }
};

/// The share of a block whose every element all ranks of its group of state hold; not shared if the
/// state is divided, if there is one rank, or if the block is too small for parts of complete rows.
StateShare stateShareOf(const Plan &plan, int32_t block);
/// The same for a block of so many elements whose longest row has `longestRow` of them.
StateShare stateShareOf(int64_t numel, int64_t longestRow, int64_t ranks);

/// Bytes that the background segments of the role copy to the host.
int64_t snapshotBytes(const Role &role);
/// Bytes that they copy within the device before.
int64_t stagedBytes(const Role &role);
/// Copies of them in memory beside the plan's (`checkpoint.in_memory_interval`): two generations of
/// a rank's state, and two of the rank whose second copy it keeps.
inline constexpr int64_t kImagesPerRank = 4;
/// The same while an asynchronous save is written: it has a copy of its own.
inline constexpr int64_t kImagesBesideSave = kImagesPerRank + 1;

/// Whether the weights of the block are those of the checkpoint whose model adapters change: saves
/// leave them out, and loads take them from there.
bool isOfBase(const Plan &plan, const Block &block);
/// Whether the parameter is a factor of an adapter.
bool isOfAdapter(const Param &param);

/// Whether ranks of the role save what they have of a block. They do not where ranks of another
/// role have the same of it, and come before them; nor of the base of adapters.
bool savesBlock(const Plan &plan, uint32_t role, int32_t block);

/// Elements of a cell.
struct CellPart {
  uint32_t cell = kNone; ///< index in Role::cells
  Moving begin;          ///< the first of them
};

/// For each value of the segment the part of a cell that it is, as a live-in value or a view of
/// one; no cell for values that ops compute, and for views whose begins move with no single group.
std::vector<CellPart> partsOfCells(const Plan &plan, const Segment &segment);

/// The background segment that has ended when this one starts, and whose copies within the device
/// it copies on; null if there is none.
const Segment *stagedBy(const Role &role, const Segment &segment);
/// partsOfCells of a background segment. What another one has staged is the part of the cell that
/// was copied; behind that segment nothing else is a part of one.
std::vector<CellPart> partsOfState(const Plan &plan, const Role &role, const Segment &segment);

} // namespace shardc::plan
