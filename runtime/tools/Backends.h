// The backends that this build of shardc-run has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Names that --backend takes.
std::vector<std::string> backendNames();

/// Where the named backend finds its kernels.
exec::FindKernel findKernelOf(const std::string &backend);

/// Makes the backend that the options name, with the plan's ranks in this process.
Result<std::unique_ptr<hal::Backend>> makeBackend(const plan::Plan &plan,
                                                  const RunToolOptions &options);

} // namespace shardc::tools
