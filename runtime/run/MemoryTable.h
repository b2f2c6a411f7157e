// Text about the memory of a rank by purpose, printed when a run starts: each arena, and the memory
// of kernels outside of the plan.
#pragma once

#include <string>

#include "runtime/exec/Executable.h"
#include "runtime/plan/Plan.h"

namespace shardc::run {

/// One line for the total, one per non-empty arena, and one each for `workspaceBytes` and
/// `receiveBufferBytes`. Memory outside of cells is for values that live within a segment.
std::string memoryTable(const plan::Role &role, int64_t workspaceBytes, int64_t receiveBufferBytes);

/// Device memory in use by part, as reported by the system, compared with the plan's prediction.
/// Empty if the device has no separate memory.
std::string deviceMemoryTable(const plan::Plan &plan, const plan::Role &role,
                              const exec::MemoryStages &stages);

} // namespace shardc::run
