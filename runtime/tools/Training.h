// Trains on this process' ranks, with one plan after the other where the batch grows.
#pragma once

#include <span>

#include "runtime/tools/Environment.h"

namespace shardc::tools {

/// Runs the plans' steps from where the environment's checkpoint, if any, says; the exit status.
int train(std::span<const plan::Plan> plans, const RunToolOptions &options, ProcessContext &process,
          Environment &environment);

} // namespace shardc::tools
