// The backends that this build of shardc-run has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Names that --backend takes.
std::vector<std::string> backendNames();

/// Where the named backend finds its kernels.
exec::FindKernel findKernelOf(const std::string &backend);

/// Makes the backend that the options name: with all of the plan's ranks in this process or, with
/// `peers`, which outlive it, with the one that they say.
Result<std::unique_ptr<hal::Backend>> makeBackend(const plan::Plan &plan,
                                                  const RunToolOptions &options,
                                                  hal::Peers *peers = nullptr);

} // namespace shardc::tools
