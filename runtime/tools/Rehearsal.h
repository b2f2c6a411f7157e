// A run without arithmetic: everything is bound, captured and launched on a backend that computes
// nothing. This finds plans that cannot be bound, and sequences of calls that break the interface.
#pragma once

#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {

/// Rehearses all steps of the plans on this process's ranks and returns the exit status. Neither
/// reads data or a checkpoint nor writes one.
int rehearse(std::span<const plan::Plan> plans, const RunToolOptions &options,
             const BackendEntry &entry, BackendSession &session, ProcessContext &process);

} // namespace shardc::tools
