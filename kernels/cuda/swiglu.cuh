// SwiGLU and its gradient for 8 elements, used by kernels that store the results and kernels that
// quantise them.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// The logistic function, within two units in the last place. An exact division would take most of
/// a chunk's time. The approximate instructions flush subnormal numbers to zero: this leaves 1 +
/// exp(-x) unchanged and changes the reciprocal by at most 2^-126.
__device__ __forceinline__ float sigmoid(float x) {
  constexpr float kLog2E = 1.44269504f;
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-x * kLog2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
  return result;
}

/// `forward` replaces gate by y = silu(gate)·up.
struct SwiGlu {
  template <Mode M>
  static __device__ void forward(float (&gate)[kChunk], const float (&up)[kChunk], bool) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      gate[j] = gate[j] * sigmoid(gate[j]) * up[j];
  }
  /// Replaces gate and up by their gradients, and sets y to the forward result.
  template <Mode M>
  static __device__ void backward(const float (&d)[kChunk], float (&gate)[kChunk],
                                  float (&up)[kChunk], float (&y)[kChunk], bool) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      float s = sigmoid(gate[j]);
      y[j] = gate[j] * s * up[j];
      float dgate = d[j] * up[j] * s * (1.0f + gate[j] * (1.0f - s));
      up[j] = d[j] * gate[j] * s;
      gate[j] = dgate;
    }
  }
};

} // namespace shardc::kernels::cuda
