// The environment variables of a process that runs a plan.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Returns the backend's name. If the options do not name one: the plan's backend, or the host if
/// ranks are simulated or the plan needs no particular backend.
std::string backendNameOf(const plan::Plan &plan, const RunToolOptions &options);

/// Sets the variables of the recipe's `env` section and the variables that the backend adds.
/// `backend` is null if it is unknown. Must be called before anything reads them and before threads
/// are started. Variables that the user has set are kept, which rank 0 reports for those of the
/// recipe. Programs that the run starts later get the environment of before. InvalidInput for a
/// name that no variable can have or that a plan must not set.
Status setVariables(const plan::Plan &plan, const BackendEntry *backend,
                    const RunToolOptions &options);

/// InvalidInput if the variables of this process prevent the plan from running.
Status checkVariables(const plan::Plan &plan, const RunToolOptions &options);

} // namespace shardc::tools
