// The first node of every graph writes step, microbatch and microbatches of the launch to device
// memory. The host changes its arguments in the executable graph before each launch. This takes a
// microsecond and does not affect launches that have begun. One thread.
#include "runtime/backend/cuda/Kernels.h"

namespace shardc::cuda {
namespace {

__global__ void setParams(int64_t *to, int64_t step, int64_t microbatch, int64_t microbatches) {
  to[0] = step;
  to[1] = microbatch;
  to[2] = microbatches;
}

} // namespace

cudaError_t loadSetParams() {
  cudaFuncAttributes unused;
  return cudaFuncGetAttributes(&unused, setParams);
}

void launchSetParams(cudaStream_t stream, int64_t *to, int64_t step, int64_t microbatch,
                     int64_t microbatches) {
  setParams<<<1, 1, 0, stream>>>(to, step, microbatch, microbatches);
}

cudaError_t updateSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, int64_t *to, int64_t step,
                            int64_t microbatch, int64_t microbatches) {
  void *arguments[] = {&to, &step, &microbatch, &microbatches};
  cudaKernelNodeParams description = {};
  description.func = reinterpret_cast<void *>(setParams);
  description.gridDim = dim3(1);
  description.blockDim = dim3(1);
  description.kernelParams = arguments;
  return cudaGraphExecKernelNodeSetParams(exec, node, &description);
}

} // namespace shardc::cuda
