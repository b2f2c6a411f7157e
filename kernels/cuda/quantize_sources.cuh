// What is quantised: sources that read some matrices and make others, a chunk at a time, rounded as
// they would be stored. A source reads kReads matrices and makes kParts of one extent:
//   at(which, row, column)                      where a chunk that it reads begins
//   columnsOf<M>(column, count)                 what it needs for these columns of all rows
//   make<M>(read[kReads], row, columns, made[kParts])
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace shardc::kernels::cuda {

/// A chunk in an operand.
struct Spot {
  Data data;
  int64_t index;
};

/// Of a source that needs nothing for its columns.
struct NoColumns {};

/// A matrix as it lies in memory.
struct Stored {
  static constexpr int kReads = 1, kParts = 1;
  Data x;
  int64_t cols;

  __device__ __forceinline__ Spot at(int, int64_t row, int64_t c) const {
    return {x, row * cols + c};
  }
  template <Mode M> __device__ __forceinline__ NoColumns columnsOf(int64_t, int) const {
    return {};
  }
  template <Mode M>
  __device__ __forceinline__ void make(const Chunk<M> (&read)[kReads], int64_t, NoColumns,
                                       Chunk<M> (&made)[kParts]) const {
    made[0] = read[0];
  }
};

/// swiglu of gate and up, which lie beside each other in the rows of x.
struct SwiGluSource {
  static constexpr int kReads = 2, kParts = 1;
  Data x;
  int64_t cols; ///< of y

  __device__ __forceinline__ Spot at(int which, int64_t row, int64_t c) const {
    return {x, (2 * row + which) * cols + c};
  }
  template <Mode M> __device__ __forceinline__ NoColumns columnsOf(int64_t, int) const {
    return {};
  }
  template <Mode M>
  __device__ __forceinline__ void make(const Chunk<M> (&read)[kReads], int64_t, NoColumns,
                                       Chunk<M> (&made)[kParts]) const {
    float gate[kChunk], up[kChunk];
    floatsOf<M>(read[0], gate);
    floatsOf<M>(read[1], up);
    SwiGlu::forward<M>(gate, up, false);
    made[0] = roundedChunk<M>(x, gate);
  }
};

/// The gradients of gate and up, and y.
struct SwiGluBwdSource {
  static constexpr int kReads = 3, kParts = 3;
  Data dy, x;
  int64_t cols; ///< of dy

  __device__ __forceinline__ Spot at(int which, int64_t row, int64_t c) const {
    return which == 0 ? Spot{dy, row * cols + c} : Spot{x, (2 * row + which - 1) * cols + c};
  }
  template <Mode M> __device__ __forceinline__ NoColumns columnsOf(int64_t, int) const {
    return {};
  }
  template <Mode M>
  __device__ __forceinline__ void make(const Chunk<M> (&read)[kReads], int64_t, NoColumns,
                                       Chunk<M> (&made)[kParts]) const {
    float d[kChunk], gate[kChunk], up[kChunk], y[kChunk];
    floatsOf<M>(read[0], d);
    floatsOf<M>(read[1], gate);
    floatsOf<M>(read[2], up);
    SwiGlu::backward<M>(d, gate, up, y, false);
    made[0] = roundedChunk<M>(x, gate);
    made[1] = roundedChunk<M>(x, up);
    made[2] = roundedChunk<M>(dy, y);
  }
};

inline SwiGluBwdSource swiGluBwdOf(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1];
  return {dataOf(dy), dataOf(x), dy.cols()};
}

/// rmsnorm made again from its statistic.
struct RmsNormAgainSource {
  static constexpr int kReads = 1, kParts = 1;
  Data x, w;
  const float *rstd;
  int64_t cols;
  float plus;

  struct Weights {
    float v[kChunk];
  };

  __device__ __forceinline__ Spot at(int, int64_t row, int64_t c) const {
    return {x, row * cols + c};
  }
  template <Mode M> __device__ __forceinline__ Weights columnsOf(int64_t c, int n) const {
    Weights weights;
    floatsOf<M>(readChunk<M>(w, c, n), weights.v);
#pragma unroll
    for (float &v : weights.v)
      v += plus;
    return weights;
  }
  template <Mode M>
  __device__ __forceinline__ void make(const Chunk<M> (&read)[kReads], int64_t row,
                                       const Weights &weights, Chunk<M> (&made)[kParts]) const {
    float y[kChunk], scale = __ldg(rstd + row);
    floatsOf<M>(read[0], y);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      y[j] = y[j] * scale * weights.v[j];
    made[0] = roundedChunk<M>(x, y);
  }
};

inline RmsNormAgainSource rmsNormAgainOf(const Call &call) {
  const Tensor &x = call.in[0], &w = call.in[1];
  return {dataOf(x), dataOf(w), static_cast<const float *>(call.in[2].data), x.cols(),
          call.attrs.zero_centered ? 1.0f : 0.0f};
}

} // namespace shardc::kernels::cuda
