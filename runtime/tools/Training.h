// Trains on this process's ranks: with one plan after another if the batch grows.
#pragma once

#include <span>

#include "runtime/tools/Environment.h"

namespace shardc::tools {

/// Runs the plans' steps, starting from the environment's checkpoint, if any. Returns the exit
/// status.
int train(std::span<const plan::Plan> plans, const RunToolOptions &options, ProcessContext &process,
          Environment &environment);

} // namespace shardc::tools
