// Environment variables of the process that runs a plan.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Sets the variables of the recipe's `env` section; they are to be there before anything reads
/// them. One that the user has set stays, and rank 0 says so. InvalidInput for a name that none can
/// have.
Status setVariables(const plan::Plan &plan);

/// Why the variables of this process keep the plan from running; empty if they do not.
std::string checkVariables(const plan::Plan &plan, const RunToolOptions &options);

} // namespace shardc::tools
