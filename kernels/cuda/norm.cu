// rmsnorm over the last dimension: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y = x·rstd·w (w + 1 if
// zero_centered). layernorm in two passes: mean, then rstd of (x - mean); y = (x - mean)·rstd·w +
// bias. add_* normalise the sum a + b as it is stored. Data f32, bf16 or f16 each, statistics f32
// sums. Mapping: bf16 rows of whole chunks up to 1024 elements have one warp, which needs no
// barrier; other rows a block, one chunk of 8 elements a thread. Both hold the row in registers
// between the passes; chunks beyond the block's width (rows over 8192 elements) are read again,
// from cache. Limited by memory: x (or a, b) read once, y (and sum) written once. H200, 2026-11, of
// a copy's 4.24 TB/s, rows of 4096 / 768: rmsnorm 2.1 / 2.9, add_rmsnorm 2.4 / 3.3, layernorm 1.5
// / 2.4, add_layernorm 2.2 / 3.2.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rows.cuh"

namespace shardc::kernels::cuda {
namespace {

struct Forward {
  Data a, b, sum, w, bias, y;
  float *mean, *rstd;
  int64_t cols;
  float eps, plus;
};

/// The elements to normalise, from x or, the first time, from a + b.
template <Mode M, bool kAdd>
__device__ __forceinline__ void input(const Forward &p, int64_t at, int n, float (&x)[kChunk]) {
  load8<M>(p.a, at, n, x);
  if (!kAdd)
    return;
  float b[kChunk];
  load8<M>(p.b, at, n, b);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    x[j] = rounded(p.sum, x[j] + b[j]);
  store8<M>(p.sum, at, n, x);
}

template <Mode M, bool kCentered>
__device__ __forceinline__ void output(const Forward &p, int64_t base, int64_t c, int n, float mean,
                                       float rstd, const float (&x)[kChunk]) {
  float w[kChunk], bias[kChunk] = {}, y[kChunk];
  load8<M>(p.w, c, n, w);
  if (kCentered)
    load8<M>(p.bias, c, n, bias);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    y[j] = (x[j] - (kCentered ? mean : 0.0f)) * rstd * (w[j] + p.plus) + bias[j];
  store8<M>(p.y, base + c, n, y);
}

/// Sum over the row of x, or of (x - mean)²; elements past n do not count.
__device__ __forceinline__ float sumOf(const float (&x)[kChunk], int n) {
  float total = 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    total += j < n ? x[j] : 0.0f;
  return total;
}
__device__ __forceinline__ float squaresOf(const float (&x)[kChunk], int n, float mean) {
  float total = 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    total += j < n ? (x[j] - mean) * (x[j] - mean) : 0.0f;
  return total;
}

template <Mode M, bool kCentered, bool kAdd>
__global__ void __launch_bounds__(1024) normForward(const Forward p) {
  awaitPrevious();
  int64_t row = blockIdx.x, base = row * p.cols, stride = static_cast<int64_t>(blockDim.x) * kChunk;
  int64_t first = static_cast<int64_t>(threadIdx.x) * kChunk;
  auto countAt = [&](int64_t c) {
    return static_cast<int>(p.cols - c < kChunk ? p.cols - c : kChunk);
  };
  const Data &stored = kAdd ? p.sum : p.a;
  float held[kChunk] = {}, x[kChunk], total[1] = {0.0f};
  for (int64_t c = first; c < p.cols; c += stride) {
    input<M, kAdd>(p, base + c, countAt(c), x);
    total[0] += kCentered ? sumOf(x, countAt(c)) : squaresOf(x, countAt(c), 0.0f);
    if (c == first)
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        held[j] = x[j];
  }
  blockSum(total);
  float mean = 0, n = static_cast<float>(p.cols);
  if (kCentered) {
    mean = total[0] / n;
    total[0] = first < p.cols ? squaresOf(held, countAt(first), mean) : 0.0f;
    for (int64_t c = first + stride; c < p.cols; c += stride) {
      load8<M>(stored, base + c, countAt(c), x);
      total[0] += squaresOf(x, countAt(c), mean);
    }
    blockSum(total);
  }
  float rstd = 1.0f / sqrtf(total[0] / n + p.eps);
  if (threadIdx.x == 0) {
    p.rstd[row] = rstd;
    if (kCentered)
      p.mean[row] = mean;
  }
  if (first < p.cols)
    output<M, kCentered>(p, base, first, countAt(first), mean, rstd, held);
  for (int64_t c = first + stride; c < p.cols; c += stride) {
    load8<M>(stored, base + c, countAt(c), x);
    output<M, kCentered>(p, base, c, countAt(c), mean, rstd, x);
  }
}

// ---- rows of whole chunks that a warp holds ----

/// A row of up to 256 times kHeld elements. All loads go before the first store.
template <Mode M, bool kCentered, bool kAdd, int kHeld>
__global__ void __launch_bounds__(kRowWarps *kWarp)
    normForwardWarps(const Forward p, int64_t rows) {
  awaitPrevious();
  int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (row >= rows)
    return;
  RowPlace place(p.cols, true);
  int64_t base = row * p.cols;
  float x[kHeld][kChunk] = {}, b[kHeld][kChunk] = {}, total[1] = {0.0f};
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot)
    if (place.count(slot) > 0) {
      load8<M>(p.a, base + place.column(slot), kChunk, x[slot]);
      if (kAdd)
        load8<M>(p.b, base + place.column(slot), kChunk, b[slot]);
    }
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot) {
    int n = place.count(slot);
    if (kAdd && n > 0) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        x[slot][j] = rounded(p.sum, x[slot][j] + b[slot][j]);
      store8<M>(p.sum, base + place.column(slot), kChunk, x[slot]);
    }
    total[0] += kCentered ? sumOf(x[slot], n) : squaresOf(x[slot], n, 0.0f);
  }
  total[0] = warpSum(total[0]);
  float mean = 0, n = static_cast<float>(p.cols);
  if (kCentered) {
    mean = total[0] / n;
    total[0] = 0;
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot)
      total[0] += squaresOf(x[slot], place.count(slot), mean);
    total[0] = warpSum(total[0]);
  }
  float rstd = 1.0f / sqrtf(total[0] / n + p.eps);
  if (threadIdx.x % kWarp == 0) {
    p.rstd[row] = rstd;
    if (kCentered)
      p.mean[row] = mean;
  }
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot)
    if (place.count(slot) > 0)
      output<M, kCentered>(p, base, place.column(slot), kChunk, mean, rstd, x[slot]);
}

template <Mode M, bool kCentered, bool kAdd>
void launchWarps(const Forward &p, int64_t rows, Queue &queue) {
  auto kernel = p.cols <= int64_t{kWarp} * kChunk       ? normForwardWarps<M, kCentered, kAdd, 1>
                : p.cols <= int64_t{3} * kWarp * kChunk ? normForwardWarps<M, kCentered, kAdd, 3>
                                                        : normForwardWarps<M, kCentered, kAdd, 4>;
  auto blocks = static_cast<unsigned>(ceilDiv(rows, kRowWarps));
  launchKernel(kernel, blocks, kRowWarps * kWarp, 0, queue, p, rows);
}

/// Operands x w [bias] and results y [mean] rstd, with the terms and their sum in front if kAdd.
template <bool kCentered, bool kAdd> void runNorm(const Call &call) {
  const Tensor *in = call.in + (kAdd ? 1 : 0), *out = call.out + (kAdd ? 1 : 0);
  const Tensor &a = call.in[0], &w = in[1], &y = out[0];
  Forward p = {};
  p.a = dataOf(a), p.w = dataOf(w), p.y = dataOf(y);
  if (kAdd)
    p.b = dataOf(call.in[1]), p.sum = dataOf(call.out[0]);
  if (kCentered)
    p.bias = dataOf(in[2]), p.mean = static_cast<float *>(out[1].data);
  p.rstd = static_cast<float *>(out[kCentered ? 2 : 1].data);
  p.cols = a.cols();
  p.eps = static_cast<float>(call.attrs.eps);
  p.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  Mode mode =
      modeOf({&a, &call.in[kAdd ? 1 : 0], &call.out[0], &w, &in[kCentered ? 2 : 1], &y}, p.cols);
  bool hasWarpRows = RowLayout(p.cols).warpRows;
  if (mode == Mode::Bf16 && hasWarpRows)
    return launchWarps<Mode::Bf16, kCentered, kAdd>(p, a.rows(), queueOf(call));
  if (mode == Mode::F16 && hasWarpRows)
    return launchWarps<Mode::F16, kCentered, kAdd>(p, a.rows(), queueOf(call));
  int threads = threadsForRow(p.cols, 1024);
  auto rows = static_cast<unsigned>(a.rows());
  forMode(mode, [&]<Mode M>() {
    launchKernel(normForward<M, kCentered, kAdd>, rows, threads, 0, queueOf(call), p);
  });
}

} // namespace

const Kernel kRmsNorm = {"rmsnorm_cuda", runNorm<false, false>, acceptsAs<&host::kRmsNorm>};
const Kernel kAddRmsNorm = {"add_rmsnorm_cuda", runNorm<false, true>,
                            acceptsAs<&host::kAddRmsNorm>};
const Kernel kLayerNorm = {"layernorm_cuda", runNorm<true, false>, acceptsAs<&host::kLayerNorm>};
const Kernel kAddLayerNorm = {"add_layernorm_cuda", runNorm<true, true>,
                              acceptsAs<&host::kAddLayerNorm>};

} // namespace shardc::kernels::cuda
