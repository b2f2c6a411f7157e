// A copy of a few words to memory of the host without a copy engine. Copies to the host take their
// turns in the order in which they are issued, whichever streams they are on: behind 13.8 GiB that
// another stream copies, the step state of 128 bytes kept the next step waiting for 0.23 s (H200,
// driver 580.159.04, 2026-11-26). One block; the words are there when the kernel has ended.
#include "runtime/backend/cuda/Kernels.h"

namespace shardc::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    copyWords(uint32_t *to, const uint32_t *from, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += kThreads)
    to[i] = from[i];
}

} // namespace

cudaError_t loadCopyWords() {
  cudaFuncAttributes unused;
  return cudaFuncGetAttributes(&unused, copyWords);
}

void launchCopyWords(cudaStream_t stream, uint32_t *to, const uint32_t *from, int64_t count) {
  copyWords<<<1, kThreads, 0, stream>>>(to, from, count);
}

} // namespace shardc::cuda
