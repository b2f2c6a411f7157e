// Checks the environment of a run before anything is allocated, and reports all problems at
// once.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

struct PreflightOptions {
  /// Runs the plan on this backend although it was made for another.
  bool isSimulation = false;
};

/// Every reason why the plan cannot run here, including kernels that refuse the types and shapes of
/// their operands.
std::vector<Report> preflight(const plan::Plan &plan, std::string_view backendName,
                              exec::FindKernel findKernel, const PreflightOptions &options);

/// Compares the memory that the plan needs with the free memory of the process' devices: arenas,
/// receive buffers if there are any, and, for devices with separate memory, the prediction for
/// communicators, workspaces and libraries. InvalidInput if it does not fit. `processes` processes
/// share the machine's memory if devices do.
Status checkMemory(const plan::Plan &plan, hal::Backend &backend, int64_t processes = 1);

/// InvalidInput if a trace is requested of a run that cannot be traced. On GPUs a piece of work is
/// identified by its node in a captured graph.
Status checkTrace(std::string_view backendName, bool isTraced, bool withoutGraphs, bool opByOp);

/// The GPUs visible to a process.
struct VisibleGpus {
  int64_t count = 0;
  std::string name; ///< the driver's name of the one that the process uses
};

/// InvalidInput if these are too few for the plan's ranks on this machine, with the setting that
/// compiles a plan for them.
Status checkGpuCount(const plan::Plan &plan, const VisibleGpus &gpus, int64_t ranksHere);

/// Warns if the plan was made for another kind of GPU; says nothing if either kind is unknown.
void judgeGpuKind(const plan::Plan &plan, const VisibleGpus &gpus, const ReportSink &emit);

} // namespace shardc::run
