// Says whether steps of a small plan add up: runs it on all ranks with terms in place of numbers,
// each of which knows what it was made of, and looks at what optimizers take. Knows nothing of
// memory and order, which the oracle runs besides.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// What is wrong with gradients, common state, steps or contents that nobody reads; empty for a
/// plan whose steps are whole. Of a plan that takes what is not there it may say nothing.
std::string findSumBreak(const Plan &plan);

} // namespace shardc::plan::oracle
