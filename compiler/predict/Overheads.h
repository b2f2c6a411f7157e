// Device memory outside the plan's arenas: CUDA context, NCCL communicators, receive buffers,
// kernel workspaces and libraries. The constants are measured; docs/benchmarks/cuda-checks.md
// compares predictions with runs.
#pragma once

#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Bytes that every run on a GPU needs: the CUDA context, and the memory that libraries keep.
int64_t leastOverheadBytes();

/// Predicted device memory of a rank in bytes.
struct Overheads {
  int64_t context = 0;
  std::vector<int64_t> channels; ///< communicators by ChannelId; 0 for channels of one rank
  int64_t communicators = 0;     ///< their sum
  int64_t receiveBuffers = 0;    ///< receive buffers of reductions; one per communicator
  int64_t workspaces = 0;        ///< one per stream that needs one
  int64_t libraries = 0;
  int64_t total() const {
    return context + communicators + receiveBuffers + workspaces + libraries;
  }
};

/// The overheads of the role with the largest overheads. The plan must be scheduled, so that
/// fusions and channels are known. All zero on the host.
Overheads overheadsOf(const Device &device, const plan::Plan &plan);
/// The overheads of one role.
Overheads overheadsOf(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// Bytes that a rank of the role needs on its device: the arenas, and the overheads on the plan's
/// GPU. If the plan runs on the host or names no device, host memory counts too.
int64_t deviceBytesOf(const plan::Plan &plan, const plan::Role &role);

/// The role whose ranks need the most device memory. The plan must have a role.
const plan::Role &largestRole(const plan::Plan &plan);

/// By ChannelId: streaming multiprocessors that the kernels of the channel may occupy, depending on
/// the ops that the plan issues on it. 0 on the host, for copy engines, and for channels of one
/// rank.
std::vector<int32_t> multiprocessorsOf(const Device &device, const plan::Plan &plan);

/// Writes predictions into the plan, so that the runtime can compare them with measurements: memory
/// per role and category, step time, and gather bandwidth. Does nothing on the host.
void notePredictions(const Device &device, plan::Plan &plan);

} // namespace shardc::predict
