// Derives the options of the CUDA backend from the plan and the command line.
#pragma once

#include "runtime/backend/cuda/Options.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Returns the options of a process whose first rank is `rank`. The caller adds how processes meet
/// and which devices they use.
cuda::Options cudaOptionsOf(const plan::Plan &plan, const RunToolOptions &options, int rank);

} // namespace shardc::tools
