// Writes the predicted timeline of a step in Perfetto's format, like `shardc run --trace` does for
// a real step.
#pragma once

#include <string>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// One step of rank 0: a thread per stream, ops labelled as in a real trace.
std::string planTrace(const predict::Device &device, const plan::Plan &plan);

} // namespace shardc::tools
