// `shardc-run --measure` and `--doctor`, which run instead of a plan. Ranks are started, connected
// and watched like those of a run.
#pragma once

#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Returns the exit status; for --doctor, kInputStatus if it has findings.
int measureMachine(RunToolOptions options);

} // namespace shardc::tools
