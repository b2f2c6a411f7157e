// Device memory that a run needs outside the plan's arenas: the context, NCCL's communicators,
// landing buffers, scratch of kernels, libraries. The constants were measured;
// docs/benchmarks/cuda-checks.md compares them with the memory of runs.
#pragma once

#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Of any run on a GPU: the context, and what libraries keep.
int64_t leastOverheadBytes();

/// Collectives up to this size use one multiprocessor, and a small communicator.
inline constexpr int64_t kSmallBytes = 64 << 10;

/// Channels that a rank has at least, each with more than kSmallBytes.
struct LeastChannels {
  int64_t transfers = 0;                    ///< between stages
  bool kernels = false;                     ///< gathers and sums inside of layers
  bool gathers = false, reductions = false; ///< of weights, and of gradients
};
/// Of their communicators, at least.
int64_t leastCommunicatorBytes(const LeastChannels &channels);

/// Bytes on each device.
struct Overheads {
  int64_t context = 0;
  std::vector<int64_t> channels; ///< communicators, by ChannelId; 0 for channels of one rank
  int64_t communicators = 0;     ///< their sum
  int64_t landings = 0;   ///< buffers for the operands of sums over ranks, one per communicator
  int64_t workspaces = 0; ///< one per stream whose kernels need scratch
  int64_t libraries = 0;
  int64_t total() const { return context + communicators + landings + workspaces + libraries; }
};

/// For the largest role. The plan must be scheduled, so that fusions and channels are known.
/// All zero on the host.
Overheads overheadsOf(const Device &device, const plan::Plan &plan);
/// The same for another role.
Overheads overheadsOf(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// What a rank of the role needs of its device: the arenas, and what is outside the plan on the GPU
/// that the plan is for. On the host, and for a plan without a device, host memory counts too.
int64_t deviceBytesOf(const plan::Plan &plan, const plan::Role &role);

/// The role of which a rank needs the most of its device. The plan has one at least.
const plan::Role &largestRole(const plan::Plan &plan);

/// Multiprocessors that the kernels of each channel may take, by ChannelId: what the plan issues on
/// it decides. 0 on the host, for copy engines and for channels of one rank.
std::vector<int32_t> multiprocessorsOf(const Device &device, const plan::Plan &plan);

/// Writes the prediction into the plan, so that the runtime can compare it: memory in parts, of
/// each role, the step's time, and the bandwidth of gathers. Does nothing on the host.
void notePredictions(const Device &device, plan::Plan &plan);

} // namespace shardc::predict
