// `shardc-run --measure` and `--doctor`, which run instead of a plan. Ranks are started, connected
// and watched like those of a run.
#pragma once

#include "runtime/tools/Options.h"

namespace shardc::tools {

/// The exit status: of --doctor, kInputStatus if something was found.
int measureMachine(RunToolOptions options);

} // namespace shardc::tools
