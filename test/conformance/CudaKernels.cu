// addValue: one thread per element, and a pause that exposes missing order. writeStep: one thread.
#include "test/conformance/CudaKernels.h"

#include "kernels/cuda/Queue.h"

namespace shardc::conformance {
namespace {

__global__ void addValue(const float *in, float *out, float value, int64_t n) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  float x = in[i];
  __nanosleep(20000); // unordered work can run in between
  out[i] = x + value;
}

__global__ void writeStep(int64_t *out, const int64_t *launch, int64_t step, int64_t microbatch,
                          int64_t microbatches) {
  out[0] = launch ? launch[0] : step;
  out[1] = launch ? launch[1] : microbatch;
  out[2] = launch ? launch[2] : microbatches;
}

} // namespace

void addValueOnDevice(const kernels::Call &call) {
  int64_t n = call.out[0].numel();
  addValue<<<static_cast<unsigned>((n + 255) / 256), 256, 0, kernels::cuda::queueOf(call)>>>(
      static_cast<const float *>(call.in[0].data), static_cast<float *>(call.out[0].data),
      static_cast<float>(call.attrs.value), n);
}

void writeStepOnDevice(const kernels::Call &call) {
  writeStep<<<1, 1, 0, kernels::cuda::queueOf(call)>>>(static_cast<int64_t *>(call.out[0].data),
                                                       call.launch, call.step, call.microbatch,
                                                       call.microbatches);
}

} // namespace shardc::conformance
