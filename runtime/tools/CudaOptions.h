// Options of the CUDA backend from plan and command line.
#pragma once

#include "runtime/backend/cuda/Options.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Options of a process whose first rank is `rank`. How processes meet, and which devices they
/// take, is left to the caller.
cuda::Options cudaOptionsOf(const plan::Plan &plan, const RunToolOptions &options, int rank);

} // namespace shardc::tools
