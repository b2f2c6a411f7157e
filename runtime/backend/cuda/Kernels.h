// The backend's own kernels. The declarations use plain types only, since files compiled by nvcc do
// not include the rest of the runtime. Launch errors are left in CUDA's last error.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace shardc::cuda {

// Each load*() loads a kernel onto the current device. Without it, the first launch loads the
// kernel and waits for all running kernels. If one of them is an NCCL kernel that waits for another
// rank of this thread, the launch hangs.

/// Queues a kernel that writes a launch's step, microbatch and microbatches to device memory.
void launchSetParams(cudaStream_t stream, int64_t *to, int64_t step, int64_t microbatch,
                     int64_t microbatches);
cudaError_t loadSetParams();
/// Changes the numbers of a captured node, from the next launch of the graph on.
cudaError_t updateSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, int64_t *to, int64_t step,
                            int64_t microbatch, int64_t microbatches);

/// Queues a kernel that adds 1 to `count`, which is in pinned host memory.
void launchPassMark(cudaStream_t stream, int64_t *count);
cudaError_t loadPassMark();

/// Queues a kernel that copies `count` words between device memory and pinned host memory.
void launchCopyWords(cudaStream_t stream, uint32_t *to, const uint32_t *from, int64_t count);
cudaError_t loadCopyWords();

/// For tests: queues a kernel that fails, and one that never ends.
void launchTrap(cudaStream_t stream);
void launchHold(cudaStream_t stream);

} // namespace shardc::cuda
