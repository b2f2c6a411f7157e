// How ranks divide the saving of replicated state: each saves the rows that begin in its part of
// the block. The snapshot has the same size on every rank.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// The stretch of the rank with coordinate dp begins at element `step` * dp and ends where the next
/// one begins, the last at the block's end. `window` elements from its begin on hold every row that
/// begins in it.
struct StateShare {
  int64_t step = 0, window = 0;

  bool isShared() const { return step > 0; }
};

/// The share of a block whose every element so many ranks hold; not shared if there is one rank, or
/// the block is too small for parts of complete rows.
StateShare stateShareOf(const Plan &plan, int32_t block, int64_t ranks);

} // namespace shardc::plan
