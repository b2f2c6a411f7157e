// swiglu of 8 elements, for the kernels that store it and those that quantise it.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// At most two units in the last place off; exact division would take most of a chunk's time. What
/// the instructions take for zero does not change 1 + exp(-x), nor its reciprocal by more than
/// 2^-126.
__device__ __forceinline__ float sigmoid(float x) {
  constexpr float kLog2E = 1.44269504f;
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-x * kLog2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
  return result;
}

/// What a gated op makes of 8 elements: gate becomes y.
struct SwiGlu {
  template <Mode M>
  static __device__ void forward(float (&gate)[kChunk], const float (&up)[kChunk], bool) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      gate[j] = gate[j] * sigmoid(gate[j]) * up[j];
  }
  /// gate and up become their gradients, y what forward makes.
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
