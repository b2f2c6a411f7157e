// The cells that the host writes or reads, by their kinds.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// True for a cell that only the host writes.
bool isWrittenByHost(const Cell &cell);
/// True for a cell whose content the host reads after each step.
bool isReadByHost(const Cell &cell);

/// True for a ring of microbatches.
bool isFeed(const Cell &cell);

/// For each cell of the role, whether a checkpoint holds its content: the step state, the
/// history of magnitudes, and of each block the weights that the optimizer has and the moments.
std::vector<bool> cellsInCheckpoint(const Plan &plan, const Role &role);
/// For each cell of the role the block of whose state a checkpoint holds it; null for other cells,
/// also for those that are of no block.
std::vector<const Block *> blocksInCheckpoint(const Plan &plan, const Role &role);
/// The first from the second.
std::vector<bool> cellsInCheckpoint(const Role &role, const std::vector<const Block *> &blocks);

} // namespace shardc::plan
