// The backend's own kernels, with plain types: files compiled by nvcc do not include the rest of
// the runtime. Launch errors are CUDA's last error.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace shardc::cuda {

// Each load*() loads a kernel onto the current device. Otherwise the first launch loads it, and
// waits for all running kernels: for ever, if NCCL's kernel is waiting for a rank of this thread.

/// Queues writing a launch's step, microbatch and microbatches to device memory.
void launchSetParams(cudaStream_t stream, int64_t *to, int64_t step, int64_t microbatch,
                     int64_t microbatches);
cudaError_t loadSetParams();
/// Gives the node that was captured from it other numbers, from the next launch of the graph on.
cudaError_t updateSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, int64_t *to, int64_t step,
                            int64_t microbatch, int64_t microbatches);

/// Queues adding one to `count`, in pinned memory of the host.
void launchPassMark(cudaStream_t stream, int64_t *count);
cudaError_t loadPassMark();

/// Queues copying so many words between device memory and pinned memory of the host.
void launchCopyWords(cudaStream_t stream, uint32_t *to, const uint32_t *from, int64_t count);
cudaError_t loadCopyWords();

/// For tests: queues a kernel that fails, and one that never ends.
void launchTrap(cudaStream_t stream);
void launchHold(cudaStream_t stream);

} // namespace shardc::cuda
