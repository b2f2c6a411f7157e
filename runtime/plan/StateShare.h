// How ranks divide the saving of replicated state: each saves the rows that begin in its part of
// the block. The snapshot has the same size on every rank. And which part of a cell it copies.
#pragma once

#include <vector>

#include "runtime/plan/Moving.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

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

/// Whether ranks of the role save what they have of a block. They do not where ranks of another
/// role have the same of it, and come before them.
bool savesBlock(const Plan &plan, uint32_t role, int32_t block);

/// Elements of a cell.
struct CellPart {
  uint32_t cell = kNone; ///< index in Role::cells
  Moving begin;          ///< the first of them
};

/// For each value of the segment the part of a cell that it is, as a live-in value or a view of
/// one; no cell for values that ops compute, and for views whose begins move with no single group.
std::vector<CellPart> partsOfCells(const Plan &plan, const Segment &segment);

} // namespace shardc::plan
