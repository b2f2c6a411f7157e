// Checks the environment of a run before anything is allocated, and reports all problems at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Report.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

struct PreflightOptions {
  /// Runs the plan on this backend even if it was made for another one.
  bool isSimulation = false;
};

/// All reasons why the plan cannot run here, including kernels that refuse the types and shapes of
/// their operands.
std::vector<Report> preflight(const plan::Plan &plan, std::string_view backendName,
                              exec::FindKernel findKernel, const PreflightOptions &options);

/// Compares the memory that the plan needs with the free memory of the process' devices. It counts
/// arenas, receive buffers if there are any, and, for devices with separate memory, the predicted
/// memory of communicators, workspaces and libraries. InvalidInput if it does not fit. If devices
/// share the machine's memory, it is divided among `processes` processes; otherwise the pinned
/// memory of all ranks on this machine is compared with the machine's.
Status checkMemory(const plan::Plan &plan, hal::Backend &backend, int64_t processes = 1);

/// InvalidInput if a trace is requested for a run that cannot be traced. On GPUs, traces identify
/// work by its node in a captured graph.
Status checkTrace(std::string_view backendName, bool isTraced, bool withoutGraphs, bool opByOp);

/// The GPUs that are visible to a process.
struct VisibleGpus {
  int64_t count = 0;
  std::string name; ///< driver's name of the GPU that the process uses
};

/// InvalidInput if there are fewer GPUs than ranks of the plan on this machine. The message has the
/// setting with which a plan for them can be compiled.
Status checkGpuCount(const plan::Plan &plan, const VisibleGpus &gpus, int64_t ranksHere);

/// Warns if the plan was made for another kind of GPU, if both kinds are known.
void judgeGpuKind(const plan::Plan &plan, const VisibleGpus &gpus, const ReportSink &emit);

/// Reports the kernels that this rank's device offers. InvalidInput if those of another rank
/// differ; `peers` is null if this process has all ranks.
Status compareKernels(hal::Peers *peers, std::string_view kernels, const ReportSink &emit);

/// Reports that the run that saved a checkpoint had other kernels than this one. Empty: unknown, or
/// no choice.
void judgeKernels(std::string_view saved, std::string_view now, const ReportSink &emit);

} // namespace shardc::run
