// What the oracle knows of the state of parameter blocks in cells.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Master weights in two cells: remainders in u16, and this rank's weights.
struct HalfCells {
  uint32_t lower, upper;
  int32_t block;
};
std::vector<HalfCells> halvesOf(const Role &role);
/// Whether the cell has a type that state of a block may have: f32, or halves of f32.
bool hasTypeOfState(const Plan &plan, const Role &role, const Cell &cell);
/// Whether the block's class is trained.
bool isTrainedBlock(const Plan &plan, int32_t block);
/// Whether saves read the cell: the optimizer's weights of a block, its moments, the step state.
bool isSaved(const Role &role, const Cell &cell);
/// The block whose weights, gradients or state the cell holds; -1 if it holds none of a block.
int32_t blockOf(const Cell &cell);
/// Ranks that have the block's state.
std::vector<int64_t> ranksWith(const Plan &plan, int32_t block);

} // namespace shardc::plan::oracle
