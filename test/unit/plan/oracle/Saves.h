// Whether background segments hand over what a rank saves, and cells have what belongs together.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// What is wrong with the copies of a role that has background segments and state of blocks, on any
/// of its ranks; empty if the host finds each element that the rank saves once, in the order of
/// each cell's elements, and halves of master weights are of one update.
std::string findSaveBreak(const Plan &plan);

} // namespace shardc::plan::oracle
