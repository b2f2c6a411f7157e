// What a rank's memory is for, as it is said when a run starts: each arena by purpose, and what
// kernels need beside the plan.
#pragma once

#include <string>

#include "runtime/exec/Executable.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// A line in sum, one for each arena that has bytes, and one each for `workspaceBytes` and
/// `landingBytes`. What no cell keeps is for values that live within a segment.
std::string memoryTable(const plan::Role &role, int64_t workspaceBytes, int64_t landingBytes);

/// What the device has in use by part, as the system counts it, beside what the plan predicted.
/// Empty where the device has no memory of its own.
std::string deviceMemoryTable(const plan::Plan &plan, const plan::Role &role,
                              const MemoryStages &stages);

} // namespace shardc::exec
