// Whether background segments copy everything that a rank saves, and halves of master weights
// match.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes the first violation on any rank of a role with background segments and state of
/// blocks. Empty if the host finds each element that the rank saves once, in order within each
/// cell, and halves of master weights are from one update.
std::string findSaveBreak(const Plan &plan);

} // namespace shardc::plan::oracle
