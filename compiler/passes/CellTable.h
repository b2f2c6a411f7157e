// Removes cells of a role after its segments were rewritten, and updates the boundaries.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/Builder.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Removes the cells that no boundary of any segment names, and renumbers the boundaries.
void dropUnusedCells(plan::Role &role);

/// An index in Plan::locs that lowering stored in the job table, or kNone.
uint32_t jobLoc(const plan::Plan &plan, int64_t loc);

/// For each block the first role that has its weights: this one counts it in norms and saves it.
std::vector<const plan::Role *> firstRoles(const plan::Plan &plan);

/// The group over which the sums of a step are made: all ranks. Added to the plan if it has none.
int16_t groupOfSteps(plan::Plan &plan);

/// Adds a result that the op leaves in the cell, whose type and purpose it has.
plan::ValueId addResultInCell(plan::Segment &segment, const plan::Role &role, plan::Op &op,
                              std::string name, uint32_t cell);

/// An op of a role.
struct OpPlace {
  uint32_t segment = plan::kNone, op = plan::kNone;
};

/// Lets sums of squares take other sums in place of gradients. `sumsOf` gets the op that alone
/// fills an operand's cell, the operand's block, and the segment that reads it; it returns the sums
/// there, or nothing if the operand stays.
void replaceSquared(
    plan::Role &role,
    const std::function<std::vector<plan::ValueId>(OpPlace, int32_t, uint32_t)> &sumsOf);

/// Gives the op one more result, a sum of squares, and a cell from which the segment `reader` takes
/// it.
plan::ValueId addSquares(plan::Role &role, OpPlace op, const std::string &name, plan::CellOf kind,
                         uint32_t reader);

/// Whether an op works at least in the last microbatch, however many there are.
bool isInLast(const plan::Op &op);

/// How many ranks have the role.
int64_t ranksOf(const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::passes
