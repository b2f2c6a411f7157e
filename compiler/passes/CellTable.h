// Edits of a role's cell table after its segments were rewritten.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/Builder.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Removes the cells that no boundary of a segment uses, and renumbers the others.
void dropUnusedCells(plan::Role &role);

/// The index in Plan::locs that lowering stored in the job table, or kNone.
uint32_t jobLoc(const plan::Plan &plan, int64_t loc);

/// For each block, the first role that has its weights: that role counts the block in norms and
/// saves it.
std::vector<const plan::Role *> firstRoles(const plan::Plan &plan);

/// The group over which per-step sums (loss, norms) are reduced: all ranks. Added to the plan if
/// needed.
int16_t groupOfSteps(plan::Plan &plan);

/// Adds to the op a result that is stored in the cell and has the cell's type and purpose.
plan::ValueId addResultInCell(plan::Segment &segment, const plan::Role &role, plan::Op &op,
                              std::string name, uint32_t cell);

/// Location of an op in a role.
struct OpPlace {
  uint32_t segment = plan::kNone, op = plan::kNone;
};

/// Replaces operands of sum_squares ops by sums that are already computed elsewhere. `sumsOf`
/// receives the op that alone writes an operand's cell, the operand's block and the reading
/// segment; it returns the values to use, or nothing to keep the operand.
void replaceSquared(
    plan::Role &role,
    const std::function<std::vector<plan::ValueId>(OpPlace, int32_t, uint32_t)> &sumsOf);

/// Adds to the op a result with a sum of squares. Segment `reader` reads it through a new cell.
/// Returns the value in `reader`.
plan::ValueId addSquares(plan::Role &role, OpPlace op, const std::string &name, plan::CellOf kind,
                         uint32_t reader);

/// Whether the op is executed in the last microbatch, for every number of microbatches.
bool isInLast(const plan::Op &op);

/// Number of ranks that have the role.
int64_t ranksOf(const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::passes
