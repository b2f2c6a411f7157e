// `shardc-run --measure` and `--doctor`: what runs instead of a plan. Ranks are started, find each
// other and are watched as those of a run are.
#pragma once

#include "runtime/tools/Options.h"

namespace shardc::tools {

/// The exit status: of --doctor, kInputStatus if something was found.
int measureMachine(RunToolOptions options);

} // namespace shardc::tools
