// Environment variables of the process that runs a plan.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// The backend's name. If the options do not name one: the plan's backend, or the host if ranks are
/// simulated.
std::string backendNameOf(const plan::Plan &plan, const RunToolOptions &options);

/// Sets the variables of the recipe's `env` section, and those that the backend sets beside them,
/// null where it is not known; they are to be there before anything reads them, and before there
/// are threads. One that the user has set stays, and rank 0 reports so of the recipe's.
/// InvalidInput for a name that none can have.
Status setVariables(const plan::Plan &plan, const BackendEntry *backend, const Console &console);

/// InvalidInput if the variables of this process keep the plan from running.
Status checkVariables(const plan::Plan &plan, const RunToolOptions &options);

} // namespace shardc::tools
