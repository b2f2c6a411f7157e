// Judges the environment of a run before anything is allocated, and tells everything that is
// missing in one go.
#pragma once

#include <string>
#include <vector>

#include "runtime/exec/BatchSource.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"

namespace shardc::exec {

struct PreflightOptions {
  /// Runs the plan on this backend although it needs another.
  bool isSimulation = false;
};

/// Everything that keeps the plan from running here, one sentence each; empty if nothing
/// does. What kernels refuse for their operands' types and shapes is among it.
std::vector<std::string> preflight(const plan::Plan &plan, std::string_view backendName,
                                   FindKernel findKernel, const PreflightOptions &options);

/// What the plan takes against what is free on the process' devices: arenas, landing buffers where
/// there are some, and on devices with memory of their own what is predicted of communicators,
/// workspaces and libraries. Empty if it fits. So many processes share this machine's memory where
/// devices do.
std::string checkMemory(const plan::Plan &plan, hal::Backend &backend, int64_t processes = 1);

/// Why a trace cannot be had of a run like that; empty if it can, or is not wanted. On GPUs work is
/// known by the node of a captured graph that it is.
std::string checkTrace(std::string_view backendName, bool isTraced, bool withoutGraphs,
                       bool opByOp);

/// GPUs as a process sees them.
struct VisibleGpus {
  int64_t count = 0;
  std::string name; ///< of the one that it takes, as the driver calls it
};

/// Why these are too few for the plan's ranks on this machine, with what makes a plan for them;
/// empty if they are not.
std::string checkGpuCount(const plan::Plan &plan, const VisibleGpus &gpus, int64_t ranksHere);

/// What it means that the plan was made for another kind of GPU; empty if it was not, or if either
/// kind is not known.
std::string gpuKindWarning(const plan::Plan &plan, const VisibleGpus &gpus);

} // namespace shardc::exec
