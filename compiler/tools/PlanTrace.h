// Writes the predicted step of a plan in the format of Perfetto, like `shardc run --trace` for a
// step that ran.
#pragma once

#include <string>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// One step of rank 0: a thread for each stream, ops by the labels that a run gives them.
std::string planTrace(const predict::Device &device, const plan::Plan &plan);

} // namespace shardc::tools
