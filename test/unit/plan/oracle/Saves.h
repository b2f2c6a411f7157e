// Whether saves find each tensor.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Describes a tensor of a plan that saves which has the name of another one, or of which no rank
/// has some elements. Empty if there is none.
std::string findSaveBreak(const Plan &plan);

} // namespace shardc::plan::oracle
