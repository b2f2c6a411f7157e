// What an op needs in order to be executed at all, whatever the order: sizes that fit each other,
// places that are aligned, inside their arena, and shared where the op works in place; and what the
// host needs of a plan.
#pragma once

#include <string>

#include "Facts.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// The first thing that is wrong, or nothing.
std::string findContractBreak(const Plan &plan);

/// True if the op updates a block from its gradient.
bool isUpdate(const Op &op);

/// True for a cell that the host writes when it likes.
bool isOfHost(const Cell &cell);

/// The rank's position among those that differ from it in the axes of the group; 0 for group -1.
int64_t indexOf(const Plan &plan, int16_t group, int64_t rank);
/// Coordinates of a rank; the last axis runs fastest.
std::vector<int64_t> coordinatesOf(const Plan &plan, int64_t rank);
/// The role of a rank.
uint32_t roleOf(const Plan &plan, int64_t rank);

} // namespace shardc::plan::oracle
