// Sources of the quantising kernels: ops whose results are quantised without being stored first. A
// source reads kReads matrices and computes kParts results of the same extent, a chunk of 8
// elements at a time, rounded as the separate op would store them. Its members:
//   at(which, row, column)            the operand and index at which a chunk begins
//   columnsOf<M>(column, count)       values that all rows need for these columns
//   make<M>(read[kReads], row, columns, made[kParts])   the chunks of its results
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/gelu.cuh"

namespace shardc::kernels::cuda {

/// The position of a chunk: an operand and an element's index.
struct Spot {
  Data data;
  int64_t index;
};

/// What columnsOf() returns in sources that need no values by column.
struct NoColumns {};

/// A matrix that is read from memory.
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

/// The gated activation of gate and up, which are the two halves of each row of x [rows, 2·cols].
template <typename Gated, bool kTanh = false> struct GatedSource {
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
    Gated::template forward<M>(gate, up, kTanh);
    made[0] = roundedChunk<M>(x, gate);
  }
};

/// The gradients of gate and up, and the activation y itself, from dy [rows, cols] and x
/// [rows, 2·cols].
template <typename Gated, bool kTanh = false> struct GatedBwdSource {
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
    Gated::template backward<M>(d, gate, up, y, kTanh);
    made[0] = roundedChunk<M>(x, gate);
    made[1] = roundedChunk<M>(x, up);
    made[2] = roundedChunk<M>(dy, y);
  }
};

/// y = max(x, 0)².
struct SquaredReluSource {
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
    float v[kChunk];
    floatsOf<M>(read[0], v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = relu(v[j]) * relu(v[j]);
    made[0] = roundedChunk<M>(x, v);
  }
};

/// dx = dy·2·max(x, 0).
struct SquaredReluBwdSource {
  static constexpr int kReads = 2, kParts = 1;
  Data dy, x;
  int64_t cols;

  __device__ __forceinline__ Spot at(int which, int64_t row, int64_t c) const {
    return {which == 0 ? dy : x, row * cols + c};
  }
  template <Mode M> __device__ __forceinline__ NoColumns columnsOf(int64_t, int) const {
    return {};
  }
  template <Mode M>
  __device__ __forceinline__ void make(const Chunk<M> (&read)[kReads], int64_t, NoColumns,
                                       Chunk<M> (&made)[kParts]) const {
    float d[kChunk], v[kChunk];
    floatsOf<M>(read[0], d);
    floatsOf<M>(read[1], v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      d[j] *= 2.0f * relu(v[j]);
    made[0] = roundedChunk<M>(x, d);
  }
};

using SwiGluSource = GatedSource<SwiGlu>;
using SwiGluBwdSource = GatedBwdSource<SwiGlu>;
template <bool kTanh> using GeGluSource = GatedSource<GeGlu, kTanh>;
template <bool kTanh> using GeGluBwdSource = GatedBwdSource<GeGlu, kTanh>;

/// Calls use.operator()<Source>() with the source for the call's variant of gelu.
template <template <bool> typename Source, typename Use> void byTanh(const Call &call, Use use) {
  if (call.attrs.tanh_approx)
    use.template operator()<Source<true>>();
  else
    use.template operator()<Source<false>>();
}

/// Makes the source of a call whose operands are x, or dy and x.
template <typename Source> Source sourceOf(const Call &call) {
  if constexpr (requires(Source source) { source.dy; })
    return {dataOf(call.in[0]), dataOf(call.in[1]), call.in[0].cols()};
  else
    return {dataOf(call.in[0]), call.in[0].cols() / Source::kReads};
}

/// A norm that is recomputed from its saved statistics: y = (x - mean)·rstd·(w + plus) + bias. The
/// statistics are f32[rows].
template <bool kCentered> struct NormAgainSource {
  static constexpr int kReads = 1, kParts = 1;
  Data x, w, bias;
  const float *mean, *rstd; ///< bias and mean are used if kCentered
  int64_t cols;
  float plus;

  struct Columns {
    float w[kChunk], bias[kChunk];
  };

  __device__ __forceinline__ Spot at(int, int64_t row, int64_t c) const {
    return {x, row * cols + c};
  }
  template <Mode M> __device__ __forceinline__ Columns columnsOf(int64_t c, int n) const {
    Columns columns;
    floatsOf<M>(readChunk<M>(w, c, n), columns.w);
#pragma unroll
    for (float &v : columns.w)
      v += plus;
    if constexpr (kCentered)
      floatsOf<M>(readChunk<M>(bias, c, n), columns.bias);
    return columns;
  }
  template <Mode M>
  __device__ __forceinline__ void make(const Chunk<M> (&read)[kReads], int64_t row,
                                       const Columns &columns, Chunk<M> (&made)[kParts]) const {
    float y[kChunk], center = 0, scale = __ldg(rstd + row);
    if constexpr (kCentered)
      center = __ldg(mean + row);
    floatsOf<M>(read[0], y);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      y[j] = (y[j] - center) * scale * columns.w[j];
      if constexpr (kCentered)
        y[j] += columns.bias[j];
    }
    made[0] = roundedChunk<M>(x, y);
  }
};

/// Makes the source of a call with operands x, w, [bias, mean] (if kCentered), rstd.
template <bool kCentered> NormAgainSource<kCentered> normAgainOf(const Call &call) {
  NormAgainSource<kCentered> source = {};
  source.x = dataOf(call.in[0]), source.w = dataOf(call.in[1]), source.cols = call.in[0].cols();
  if (kCentered)
    source.bias = dataOf(call.in[2]), source.mean = static_cast<const float *>(call.in[3].data);
  source.rstd = static_cast<const float *>(call.in[kCentered ? 4 : 2].data);
  source.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  return source;
}

} // namespace shardc::kernels::cuda
