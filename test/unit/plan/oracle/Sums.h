// Finds out whether the sums of a small plan's steps are complete: runs it on all ranks with terms
// instead of numbers, which record the values they are computed from, and checks the operands of
// optimizers. Ignores memory and order, which the oracle checks separately.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes a fault in gradients, shared state, steps, or content that nothing reads; empty if
/// there is none. If the plan takes a value that does not exist, faults may be missed.
std::string findSumBreak(const Plan &plan);

} // namespace shardc::plan::oracle
