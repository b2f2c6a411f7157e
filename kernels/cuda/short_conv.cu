// short_conv, causal_conv and their gradients as kernels/host/ShortConv.cpp describes them, with at
// most 4 positions. Mapping: a warp has 256 channels of runs of rows, one row after the other, with
// the filter and what the last rows have in registers; it loads several rows at a time. A run's
// gradient goes on for the rows behind it that read the run. Terms of dw stay in registers; warps
// and then blocks are added in order. Data are f32, bf16 or f16 each, all sums f32. Limited by
// memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/columns.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kTapsMax = static_cast<int>(cudaLimit(CudaLimit::ShortConvTaps).most);

constexpr int kRun = 16; ///< rows

/// A number of each of a thread's channels: of the filter, [j] for the position `j` before, and in
/// sums the last one is that of the bias; of the last rows, [i] for the one whose distance from the
/// run's first is i modulo kTapsMax.
using Taps = float[kTapsMax + 1][kChunk];

/// The call, with y or its gradient in `y`; `partials`: terms of dw, [blocks, cols, taps]. `bias`
/// is null if there is none, `biasPartials` are terms of its gradient, [blocks, cols].
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
};

/// Rows one after the other, numbered over all samples.
struct Reaches {
  const Conv &p;
  int64_t s; ///< position of the next row in its sample

  __device__ Reaches(const Conv &p, int64_t row) : p(p), s(row % p.positions) {}
  /// How many positions the convolution of the next row adds.
  __device__ __forceinline__ int next(int64_t row) {
    int64_t first = p.isReset ? p.docs[row] : 0;
    first = first < 0 ? 0 : first > s ? s : first;
    const int reach = static_cast<int>(s - first < p.taps ? s - first + 1 : p.taps);
    s = s + 1 < p.positions ? s + 1 : 0;
    return reach;
  }
};

/// v[k] *= silu(x[k]), or its slope.
__device__ __forceinline__ void multiplySilu(const float (&x)[kChunk], bool isSlope,
                                             float (&v)[kChunk]) {
#pragma unroll
  for (int k = 0; k < kChunk; ++k) {
    const float sigmoid = sigmoidOf(x[k]);
    v[k] *= sigmoid * (isSlope ? 1.0f + x[k] * (1.0f - sigmoid) : x[k]);
  }
}

/// Rows that a thread loads at a time.
template <Mode M, int kParts>
inline constexpr int kRowsAhead = kParts == 1 && kIsNarrow<M> ? kTapsMax : 1;

/// The channels and runs of a thread. Rows of x have `kParts` parts; one part is convolved itself.
template <int kParts> struct Place {
  const Conv &p;
  int64_t c, run, step;
  int n; ///< number of channels

  __device__ explicit Place(const Conv &p)
      : p(p), c(int64_t{blockIdx.x} * kSumColumns + threadIdx.x * kChunk),
        run(int64_t{blockIdx.y} * kSumWarps + threadIdx.y), step(int64_t{gridDim.y} * kSumWarps),
        n(c < p.cols ? upToChunk(p.cols - c) : 0) {}

  __device__ __forceinline__ void loadFilter(Taps &w) const {
    float v[kChunk];
    if (p.taps == kTapsMax && n == kChunk && reinterpret_cast<uintptr_t>(p.w.p) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kTapsMax; ++i) {
        load8<Mode::Mixed>(p.w, c * kTapsMax + i * kChunk, kChunk, v);
#pragma unroll
        for (int k = 0; k < kChunk; ++k)
          w[kTapsMax - 1 - k % kTapsMax][(i * kChunk + k) / kTapsMax] = v[k];
      }
      return;
    }
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
  /// The numbers to which a convolution is added.
  __device__ __forceinline__ void beginSum(float (&sum)[kChunk]) const {
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      sum[k] = kParts == 1 && p.bias.p != nullptr && k < n ? element(p.bias, c + k) : 0.0f;
  }
  /// The first part of a row of x, or a row of `d`; 0 outside of the rows.
  template <Mode M> __device__ __forceinline__ Chunk<M> fetch(int64_t row) const {
    const bool isThere = row >= 0 && row < p.rows;
    return readChunk<M>(p.x, partAt(isThere ? row : 0, 0), isThere ? n : 0);
  }
  template <Mode M> __device__ __forceinline__ Chunk<M> fetch(const Data &d, int64_t row) const {
    return readChunk<M>(d, row < p.rows ? row * p.cols + c : 0, row < p.rows ? n : 0);
  }
  /// What is convolved at a row, of which the first part is given.
  template <Mode M>
  __device__ __forceinline__ void load(const Chunk<M> &x, int64_t row, float (&v)[kChunk]) const {
    floatsOf<M>(x, v);
    if (kParts > 1 && row >= 0 && row < p.rows)
      multiply<M>(row, 2, v);
  }
  /// Loads the rows in front of a run.
  template <Mode M> __device__ __forceinline__ void begin(int64_t first, Taps &last) const {
#pragma unroll
    for (int j = 1; j < kTapsMax; ++j)
      load<M>(fetch<M>(first - j), first - j, last[kTapsMax - j]);
  }
};

/// Adds the products of a filter with the last `reach` rows, of which `at` is the latest.
__device__ __forceinline__ void convolveRows(const Taps &w, const Taps &last, int at, int reach,
                                             float (&sum)[kChunk]) {
#pragma unroll
  for (int j = kTapsMax - 1; j >= 0; --j)
    if (j < reach)
#pragma unroll
      for (int k = 0; k < kChunk; ++k)
        sum[k] += w[j][k] * last[(at - j + kTapsMax) % kTapsMax][k];
}

template <Mode M, int kParts>
__global__ void __launch_bounds__(kSumWarps *kWarp, 2) convolve(const __grid_constant__ Conv p) {
  awaitPrevious();
  const Place<kParts> at(p);
  Taps w, last;
  Chunk<M> ahead[kRowsAhead<M, kParts>];
  at.loadFilter(w);
  for (int64_t run = at.run; at.n > 0 && run * kRun < p.rows; run += at.step) {
    at.template begin<M>(run * kRun, last);
    Reaches reaches(p, run * kRun);
    for (int64_t from = run * kRun; from < (run + 1) * kRun; from += kTapsMax)
#pragma unroll
      for (int i = 0; i < kTapsMax; ++i) {
        const int64_t row = from + i;
        if (i % kRowsAhead<M, kParts> == 0)
#pragma unroll
          for (int j = 0; j < kRowsAhead<M, kParts>; ++j)
            ahead[j] = at.template fetch<M>(row + j);
        if (row >= p.rows)
          break;
        at.template load<M>(ahead[i % kRowsAhead<M, kParts>], row, last[i]);
        float sum[kChunk];
        at.beginSum(sum);
        convolveRows(w, last, i, reaches.next(row), sum);
        if constexpr (kParts > 1) {
          at.template multiply<M>(row, 1, sum);
          store8<M>(p.y, row * p.cols + at.c, at.n, sum);
        } else {
          float y[kChunk] = {1, 1, 1, 1, 1, 1, 1, 1};
          multiplySilu(sum, false, y);
          store8<M>(p.y, row * p.cols + at.c, at.n, y);
        }
      }
  }
}

/// A run of rows, the gradient of the convolution at the last rows, and how far each reaches.
struct RunBwd {
  int64_t first, end;
  Taps last, gradients;
  int reaches[kTapsMax];
};

/// Computes the gradient of the convolution at row `row`, and adds its terms of dw to `sums` if the
/// row is one of the run's.
template <Mode M, int kParts>
__device__ __forceinline__ void
differentiateRow(const Place<kParts> &at, int64_t row, int i, const Taps &w, const Chunk<M> &x,
                 const Chunk<M> &dy, Reaches &reaches, RunBwd &run, Taps &sums) {
  const Conv &p = at.p;
  run.reaches[i] = 0;
  if (row >= p.rows || row >= run.end + kTapsMax - 1)
    return;
  float conv[kChunk];
  at.beginSum(conv);
  float(&g)[kChunk] = run.gradients[i];
  at.template load<M>(x, row, run.last[i]);
  run.reaches[i] = reaches.next(row);
  convolveRows(w, run.last, i, run.reaches[i], conv);
  floatsOf<M>(dy, g);
  if constexpr (kParts > 1) {
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      conv[k] *= g[k];
    if (row < run.end)
      store8<M>(p.dx, at.partAt(row, 1), at.n, conv);
    at.template multiply<M>(row, 1, g);
  } else {
    multiplySilu(conv, true, g);
  }
  if (row >= run.end)
    return;
#pragma unroll
  for (int k = 0; k < kChunk; ++k)
    sums[kTapsMax][k] += g[k];
#pragma unroll
  for (int j = 0; j < kTapsMax; ++j)
    if (j < run.reaches[i])
#pragma unroll
      for (int k = 0; k < kChunk; ++k)
        sums[j][k] += g[k] * run.last[(i - j + kTapsMax) % kTapsMax][k];
}

/// Writes dx of the row that lies kTapsMax - 1 before row `row`, if it is one of the run's.
template <Mode M, int kParts>
__device__ __forceinline__ void writeGradient(const Place<kParts> &at, int64_t row, int i,
                                              const Taps &w, const RunBwd &run) {
  const int64_t to = row - (kTapsMax - 1);
  if (to < run.first || to >= run.end)
    return;
  float read[kChunk] = {}, other[kChunk];
#pragma unroll
  for (int j = 0; j < kTapsMax; ++j) // of the row j behind
    if (const int of = (i + 1 + j) % kTapsMax; j < run.reaches[of])
#pragma unroll
      for (int k = 0; k < kChunk; ++k)
        read[k] += w[j][k] * run.gradients[of][k];
  if constexpr (kParts > 1) {
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      other[k] = read[k];
    at.template multiply<M>(to, 0, other);
    at.template multiply<M>(to, 2, read);
    store8<M>(at.p.dx, at.partAt(to, 2), at.n, other);
  }
  store8<M>(at.p.dx, at.partAt(to, 0), at.n, read);
}

template <Mode M, int kParts>
__global__ void __launch_bounds__(kSumWarps *kWarp) convolveBwd(const __grid_constant__ Conv p) {
  awaitPrevious();
  __shared__ float shared[kSumWarps][kSumColumns];
  const Place<kParts> at(p);
  Taps w, sums = {};
  Chunk<M> x[kRowsAhead<M, kParts>], dy[kRowsAhead<M, kParts>];
  at.loadFilter(w);
  for (int64_t number = at.run; at.n > 0 && number * kRun < p.rows; number += at.step) {
    RunBwd run;
    run.first = number * kRun;
    run.end = run.first + kRun < p.rows ? run.first + kRun : p.rows;
    at.template begin<M>(run.first, run.last);
    Reaches reaches(p, run.first);
    for (int64_t from = run.first; from < run.end + kTapsMax - 1; from += kTapsMax)
#pragma unroll
      for (int i = 0; i < kTapsMax; ++i) {
        constexpr int kRows = kRowsAhead<M, kParts>;
        if (i % kRows == 0)
#pragma unroll
          for (int j = 0; j < kRows; ++j)
            x[j] = at.template fetch<M>(from + i + j),
            dy[j] = at.template fetch<M>(p.y, from + i + j);
        differentiateRow<M>(at, from + i, i, w, x[i % kRows], dy[i % kRows], reaches, run, sums);
        writeGradient<M>(at, from + i, i, w, run);
      }
  }
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
  return reason
             ? reason
             : cudaRefusal(CudaLimit::ShortConvTaps, call.in[call.outCount > 1 ? 2 : 1].shape[1]);
}

} // namespace

SHARDC_KERNEL(ShortConv, acceptsTaps, runConv<3>);
SHARDC_KERNEL(ShortConvBwd, acceptsTaps, withBuffers<runConvBwd<3>>);
SHARDC_KERNEL(CausalConv, acceptsTaps, runConv<1>);
SHARDC_KERNEL(CausalConvBwd, acceptsTaps, withBuffers<runConvBwd<1>>);

} // namespace shardc::kernels::cuda
