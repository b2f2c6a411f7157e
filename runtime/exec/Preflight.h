// Checks the environment of a run before anything is allocated, and reports all problems at
// once.
#pragma once

#include <string>
#include <vector>

#include "runtime/exec/BatchSource.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"

namespace shardc::exec {

struct PreflightOptions {
  /// Runs the plan on this backend although it was made for another.
  bool isSimulation = false;
};

/// Every reason why the plan cannot run here, one sentence each, including kernels that refuse the
/// types and shapes of their operands; empty if it can run.
std::vector<std::string> preflight(const plan::Plan &plan, std::string_view backendName,
                                   FindKernel findKernel, const PreflightOptions &options);

/// Compares the memory that the plan needs with the free memory of the process' devices: arenas,
/// landing buffers if there are any, and, for devices with separate memory, the prediction for
/// communicators, workspaces and libraries. Empty if it fits. `processes` processes share the
/// machine's memory if devices do.
std::string checkMemory(const plan::Plan &plan, hal::Backend &backend, int64_t processes = 1);

/// Why such a run cannot be traced; empty if it can, or if no trace is requested. On GPUs a piece
/// of work is identified by its node in a captured graph.
std::string checkTrace(std::string_view backendName, bool isTraced, bool withoutGraphs,
                       bool opByOp);

/// The GPUs visible to a process.
struct VisibleGpus {
  int64_t count = 0;
  std::string name; ///< the driver's name of the one that the process uses
};

/// Why these are too few for the plan's ranks on this machine, with the setting that compiles a
/// plan for them; empty if they suffice.
std::string checkGpuCount(const plan::Plan &plan, const VisibleGpus &gpus, int64_t ranksHere);

/// The consequences if the plan was made for another kind of GPU; empty if not, or if either kind
/// is unknown.
std::string gpuKindWarning(const plan::Plan &plan, const VisibleGpus &gpus);

} // namespace shardc::exec
