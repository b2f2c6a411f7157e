// Removes cells of a role after its segments were rewritten, and updates the boundaries.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Removes the cells that no boundary of any segment names, and renumbers the boundaries.
void dropUnusedCells(plan::Role &role);

/// An index in Plan::locs that lowering stored in the job table, or kNone.
uint32_t jobLoc(const plan::Plan &plan, int64_t loc);

} // namespace shardc::passes
