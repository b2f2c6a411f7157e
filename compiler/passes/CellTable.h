// Adds and removes cells of a role while its segments are rewritten, and updates the boundaries.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// A kind of cells, and the block or parameter that one of them is of.
struct CellOf {
  CellOf(plan::CellKind kind) : kind(kind) {}
  CellOf(plan::CellKind kind, size_t of) : kind(kind), of(static_cast<int32_t>(of)) {}
  plan::CellKind kind;
  int32_t of = -1;
};

/// Adds a cell and returns its index.
uint32_t addCell(plan::Role &role, std::string name, CellOf kind, const plan::Type &type,
                 plan::Arena arena, plan::Purpose purpose);

/// Removes the cells that no boundary of any segment names, and renumbers the boundaries.
void dropUnusedCells(plan::Role &role);

/// An index in Plan::locs that lowering stored in the job table, or kNone.
uint32_t jobLoc(const plan::Plan &plan, int64_t loc);

} // namespace shardc::passes
