// swiglu of 8 elements, for the kernels that store it and those that quantise it.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// At most two units in the last place off; exact division would take most of a chunk's time.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

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

/// y of a chunk in a row of x, of which it has half the columns, rounded to x's type.
template <Mode M>
__device__ __forceinline__ void loadSwiGlu(const Data &x, int64_t row, int64_t c, int64_t cols,
                                           int n, float (&y)[kChunk]) {
  float up[kChunk];
  load8<M>(x, row * 2 * cols + c, n, y);
  load8<M>(x, row * 2 * cols + cols + c, n, up);
  SwiGlu::forward<M>(y, up, false);
  round8<M>(x, y);
}

} // namespace shardc::kernels::cuda
