// Rows of which a value says how many are there.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// The first thing that is wrong, or nothing. Ops on runs take rows of the counts that they take,
/// and places that were made with counts. Sums over ranks are of rows that are all there. What was
/// left in a buffer is not looked at.
std::string findCountBreak(const Plan &plan);

} // namespace shardc::plan::oracle
