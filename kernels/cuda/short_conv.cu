// short_conv, causal_conv and their gradients as kernels/host/ShortConv.cpp describes them, with at
// most 4 positions. Mapping: a warp has 256 channels of rows at a fixed distance, with the filter
// in registers; rows that neighbours have read come from the caches. Terms of dw stay in registers;
// warps and then blocks are added in order. Data are f32, bf16 or f16 each, all sums f32. Limited
// by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kTapsMax = static_cast<int>(cudaLimit(CudaLimit::ShortConvTaps).most);

/// A number of each of a thread's channels, [j] for the position `j` before; of sums, the last one
/// is that of the bias.
using Taps = float[kTapsMax + 1][kChunk];

/// The call, with y or its gradient in `y`; `partials`: terms of dw, [blocks, cols, taps]. `bias` is
/// null if there is none, `biasPartials` are terms of its gradient, [blocks, cols].
struct Conv {
  Data x, w, bias, y, dx;
  const int32_t *docs;
  float *partials, *biasPartials = nullptr;
  int64_t rows, positions, cols;
  int taps;
  bool isReset;

  Conv(const Call &call, int first, const Tensor &y)
      : x(dataOf(call.in[first])), w(dataOf(call.in[first + 1])), bias{}, y(dataOf(y)),
        docs(static_cast<const int32_t *>(call.in[first + 2].data)), partials(nullptr),
        rows(y.rows()), positions(y.shape[1]), cols(y.cols()),
        taps(static_cast<int>(call.in[first + 1].shape[1])), isReset(call.attrs.reset_mask) {
    if (call.inCount > first + 3)
      bias = dataOf(call.in[first + 3]);
  }

  /// How many positions the convolution of a row adds. Rows are numbered over all samples.
  __device__ __forceinline__ int reach(int64_t row) const {
    int64_t s = row % positions, first = isReset ? docs[row] : 0;
    first = first < 0 ? 0 : first > s ? s : first;
    return static_cast<int>(s - first < taps ? s - first + 1 : taps);
  }
};

/// v[k] *= silu(x[k]), or its slope.
__device__ __forceinline__ void multiplySilu(const float (&x)[kChunk], bool isSlope,
                                             float (&v)[kChunk]) {
#pragma unroll
  for (int k = 0; k < kChunk; ++k) {
    const float sigmoid = 1.0f / (1.0f + expf(-x[k]));
    v[k] *= sigmoid * (isSlope ? 1.0f + x[k] * (1.0f - sigmoid) : x[k]);
  }
}

/// The channels and rows of a thread. Rows of x have `kParts` parts; one part is convolved itself.
template <int kParts> struct Place {
  const Conv &p;
  int64_t c, row, step;
  int n; ///< number of channels

  __device__ explicit Place(const Conv &p)
      : p(p), c(int64_t{blockIdx.x} * kSumColumns + threadIdx.x * kChunk),
        row(int64_t{blockIdx.y} * kSumWarps + threadIdx.y), step(int64_t{gridDim.y} * kSumWarps),
        n(c < p.cols ? upToChunk(p.cols - c) : 0) {}

  __device__ __forceinline__ void loadFilter(Taps &w) const {
#pragma unroll
    for (int j = 0; j < kTapsMax; ++j)
#pragma unroll
      for (int k = 0; k < kChunk; ++k)
        w[j][k] = j < p.taps && k < n ? element(p.w, (c + k) * p.taps + p.taps - 1 - j) : 0.0f;
  }
  __device__ __forceinline__ int64_t partAt(int64_t row, int part) const {
    return (row * kParts + part) * p.cols + c;
  }
  template <Mode M>
  __device__ __forceinline__ void multiply(int64_t row, int part, float (&v)[kChunk]) const {
    float x[kChunk];
    load8<M>(p.x, partAt(row, part), n, x);
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      v[k] *= x[k];
  }
  /// The convolution at a row, and what `each(j, products)` does with the products that it adds.
  template <Mode M, typename Each>
  __device__ __forceinline__ void convolve(int64_t row, const Taps &w, float (&sum)[kChunk],
                                           Each each) const {
    const int reach = p.reach(row);
    if constexpr (kParts == 1)
      for (int k = 0; p.bias.p != nullptr && k < n; ++k)
        sum[k] = element(p.bias, c + k);
#pragma unroll
    for (int j = kTapsMax - 1; j >= 0; --j)
      if (j < reach) {
        float v[kChunk];
        load8<M>(p.x, partAt(row - j, 0), n, v);
        if constexpr (kParts > 1)
          multiply<M>(row - j, 2, v);
#pragma unroll
        for (int k = 0; k < kChunk; ++k)
          sum[k] += w[j][k] * v[k];
        each(j, v);
      }
  }
  /// The gradient of the convolution at a row, from that of y.
  template <Mode M>
  __device__ __forceinline__ void gradient(int64_t row, const Taps &w, float (&g)[kChunk]) const {
    load8<M>(p.y, row * p.cols + c, n, g);
    if constexpr (kParts > 1) {
      multiply<M>(row, 1, g);
    } else {
      float sum[kChunk] = {};
      convolve<M>(row, w, sum, [](int, const float(&)[kChunk]) {});
      multiplySilu(sum, true, g);
    }
  }
};

template <Mode M, int kParts>
__global__ void __launch_bounds__(kSumWarps *kWarp) convolve(const __grid_constant__ Conv p) {
  awaitPrevious();
  const Place<kParts> at(p);
  Taps w;
  at.loadFilter(w);
  for (int64_t row = at.row; at.n > 0 && row < p.rows; row += at.step) {
    float sum[kChunk] = {};
    at.template convolve<M>(row, w, sum, [](int, const float(&)[kChunk]) {});
    if constexpr (kParts > 1) {
      at.template multiply<M>(row, 1, sum);
    } else {
      float ones[kChunk] = {1, 1, 1, 1, 1, 1, 1, 1};
      multiplySilu(sum, false, ones);
#pragma unroll
      for (int k = 0; k < kChunk; ++k)
        sum[k] = ones[k];
    }
    store8<M>(p.y, row * p.cols + at.c, at.n, sum);
  }
}

/// Writes dx of a row, and adds its terms of dw to `sums`.
template <Mode M, int kParts>
__device__ __forceinline__ void differentiateRow(const Place<kParts> &at, int64_t row,
                                                 const Taps &w, Taps &sums) {
  const Conv &p = at.p;
  float g[kChunk], conv[kChunk] = {}, read[kChunk] = {}, v[kChunk];
  at.template gradient<M>(row, w, g);
  at.template convolve<M>(row, w, conv, [&](int j, const float(&products)[kChunk]) {
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      sums[j][k] += g[k] * products[k];
  });
#pragma unroll
  for (int k = 0; k < kChunk; ++k)
    sums[kTapsMax][k] += g[k];
  const int64_t left = p.positions - row % p.positions;
#pragma unroll
  for (int j = 0; j < kTapsMax; ++j)
    if (j < p.taps && j < left && j < p.reach(row + j)) {
      at.template gradient<M>(row + j, w, v);
#pragma unroll
      for (int k = 0; k < kChunk; ++k)
        read[k] += w[j][k] * v[k];
    }
  if constexpr (kParts == 1)
    return store8<M>(p.dx, at.partAt(row, 0), at.n, read);
  load8<M>(p.y, row * p.cols + at.c, at.n, v);
#pragma unroll
  for (int k = 0; k < kChunk; ++k)
    conv[k] *= v[k], v[k] = read[k];
  at.template multiply<M>(row, 0, v);
  at.template multiply<M>(row, 2, read);
  store8<M>(p.dx, at.partAt(row, 0), at.n, read);
  store8<M>(p.dx, at.partAt(row, 1), at.n, conv);
  store8<M>(p.dx, at.partAt(row, 2), at.n, v);
}

template <Mode M, int kParts>
__global__ void __launch_bounds__(kSumWarps *kWarp) convolveBwd(const __grid_constant__ Conv p) {
  awaitPrevious();
  __shared__ float shared[kSumWarps][kSumColumns];
  const Place<kParts> at(p);
  Taps w, sums = {};
  at.loadFilter(w);
  for (int64_t row = at.row; at.n > 0 && row < p.rows; row += at.step)
    differentiateRow<M>(at, row, w, sums);
  const int thread = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + thread;
#pragma unroll
  for (int j = 0; j <= kTapsMax; ++j) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      shared[threadIdx.y][threadIdx.x * kChunk + k] = sums[j][k];
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < kSumWarps; ++i)
      total += shared[i][thread];
    if (column < p.cols && j < p.taps)
      p.partials[(blockIdx.y * p.cols + column) * p.taps + p.taps - 1 - j] = total;
    if (column < p.cols && j == kTapsMax && p.biasPartials != nullptr)
      p.biasPartials[blockIdx.y * p.cols + column] = total;
  }
}

template <int kParts> void runConv(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const Conv p(call, 0, y);
  forMode(modeOf({&x, &y}, p.cols), [&]<Mode M>() {
    launchKernel(convolve<M, kParts>, sumGrid(y), dim3(kWarp, kSumWarps), 0, queueOf(call), p);
  });
}

struct Buffers {
  float *partials, *biasPartials = nullptr;
  Buffers(const Call &call, Scratch &scratch)
      : partials(scratch.take<float>(sumGrid(call.in[0]).y * call.in[2].numel())) {
    if (call.outCount > 2)
      biasPartials = scratch.take<float>(sumGrid(call.in[0]).y * call.in[2].shape[0]);
  }
};

template <int kParts> void runConvBwd(const Call &call, const Buffers &buffers) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  Conv p(call, 1, dy);
  p.dx = dataOf(dx), p.partials = buffers.partials, p.biasPartials = buffers.biasPartials;
  const dim3 grid = sumGrid(dy);
  forMode(modeOf({&dy, &x, &dx}, p.cols), [&]<Mode M>() {
    launchKernel(convolveBwd<M, kParts>, grid, dim3(kWarp, kSumWarps), 0, queueOf(call), p);
  });
  ColumnTargets targets = {};
  targets.out[0] = dataOf(call.out[1]);
  launchAddPartials(call, p.partials, static_cast<int>(grid.y), 1, p.cols * p.taps, targets);
  if (p.biasPartials == nullptr)
    return;
  targets.out[0] = dataOf(call.out[2]);
  launchAddPartials(call, p.biasPartials, static_cast<int>(grid.y), 1, p.cols, targets);
}

template <const Kernel *kOracle> const char *acceptsTaps(const Call &call) {
  const char *reason = acceptsAs<kOracle>(call);
  return reason ? reason
                : cudaRefusal(CudaLimit::ShortConvTaps, call.in[call.outCount > 1 ? 2 : 1].shape[1]);
}

} // namespace

SHARDC_KERNEL(ShortConv, acceptsTaps, runConv<3>);
SHARDC_KERNEL(ShortConvBwd, acceptsTaps, withBuffers<runConvBwd<3>>);
SHARDC_KERNEL(CausalConv, acceptsTaps, runConv<1>);
SHARDC_KERNEL(CausalConvBwd, acceptsTaps, withBuffers<runConvBwd<1>>);

} // namespace shardc::kernels::cuda
