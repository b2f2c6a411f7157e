// Device memory that a run takes beside the plan's arenas: the context, NCCL's communicators,
// landing buffers, scratch of kernels, libraries. The constants were measured;
// docs/benchmarks/cuda-checks.md has them beside what runs had in use.
#pragma once

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Bytes on each device.
struct Overheads {
  int64_t context = 0;
  int64_t communicators = 0;
  int64_t landings = 0;   ///< what sums over ranks are formed from, one for each communicator
  int64_t workspaces = 0; ///< one for each stream that has kernels with scratch
  int64_t libraries = 0;
  int64_t total() const { return context + communicators + landings + workspaces + libraries; }
};

/// Of the plan's first role. The plan is scheduled: fusions and channels are known. All zero on the
/// host.
Overheads overheadsOf(const Device &device, const plan::Plan &plan);

/// Writes what is predicted into the plan's job, for the runtime to compare with: memory in parts,
/// the step's time, and the bandwidth of gathers. Nothing on the host.
void notePredictions(const Device &device, plan::Plan &plan);

} // namespace shardc::predict
