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

} // namespace shardc::kernels::cuda
