// rmsnorm over the last dimension: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y = x·rstd·w (w + 1 if
// zero_centered). layernorm in two passes: mean, then rstd of (x - mean); y = (x - mean)·rstd·w +
// bias. add_* normalise the sum a + b as it is stored. Data f32, bf16 or f16 each, statistics f32
// sums. Mapping: bf16 rows of whole chunks up to 1024 elements have one warp, which needs no
// barrier; other rows a block, one chunk of 8 elements a thread. Both hold the row in registers
// between the passes; chunks beyond the block's width (rows over 8192 elements) are read again,
// from cache. The ops that quantise y write it in 8 bits instead, to the bit what quantize_delayed
// makes of the y that the norm would store. Limited by memory: x (or a, b) read once, y (and sum)
// written once. H200, 2026-11, of a copy's 4.24 TB/s, rows of 4096 / 768: rmsnorm 2.1 / 2.9,
// add_rmsnorm 2.4 / 3.3, layernorm 1.5 / 2.4, add_layernorm 2.2 / 3.2.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_blocks.cuh"
#include "kernels/cuda/rows.cuh"

namespace shardc::kernels::cuda {
namespace {

struct Forward {
  Data a, b, sum, w, bias, y;
  Target to;          ///< of y in 8 bits; y's own address is not used then
  BlockTarget blocks; ///< the same with scales of blocks of 1 by 128
  unsigned *largest;  ///< of the magnitudes of y, where these are looked for
  float *mean, *rstd;
  int64_t rows, cols;
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

/// What becomes of y: it is stored, quantised by a magnitude that is known before or by those of
/// its blocks, or only looked at.
enum class Form { Stored, Quantised, Blocks, LookedAt };

/// A chunk of y; those past the row's end have n = 0, and only blocks have them. Joins magnitudes
/// to `most`, where they are looked for.
template <Mode M, bool kCentered, Form kForm>
__device__ __forceinline__ void output(const Forward &p, int64_t row, int64_t c, int n, float mean,
                                       float rstd, const float (&x)[kChunk], unsigned &most) {
  int64_t at = row * p.cols + c;
  float w[kChunk], bias[kChunk] = {}, y[kChunk];
  load8<M>(p.w, c, n, w);
  if (kCentered)
    load8<M>(p.bias, c, n, bias);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    y[j] = (x[j] - (kCentered ? mean : 0.0f)) * rstd * (w[j] + p.plus);
    if (kCentered)
      y[j] += bias[j];
  }
  if constexpr (kForm != Form::Stored)
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      y[j] = j < n ? rounded(p.y, y[j]) : 0.0f;
  if constexpr (kForm == Form::Stored) {
    store8<M>(p.y, at, n, y);
  } else if constexpr (kForm == Form::Quantised) {
    float multiplier = multiplierOf(*p.to.amax, p.to.isE5M2);
    storeRow<M>(p.to.q, at, n, codesOf(p.to, multiplier, y, most));
  } else if constexpr (kForm == Form::Blocks) {
    constexpr int kWidth = 128;
    int64_t index = c / kWidth * p.rows + row;
    storeRow<M>(
        p.blocks.q, at, n,
        codesOfRowBlock<ScaleBlocks::Rows128>(y, p.blocks, index, c % kWidth == 0 && n > 0));
  } else if constexpr (kForm == Form::LookedAt) {
    most = largestOf(most, y);
  }
}

/// By all threads of a kernel, behind their rows.
template <Form kForm> __device__ __forceinline__ void finish(const Forward &p, unsigned most) {
  if constexpr (kForm == Form::Quantised || kForm == Form::LookedAt)
    joinLargest(most, p.largest);
  if (kForm == Form::Quantised && blockIdx.x == 0 && threadIdx.x == 0)
    *p.to.scale = reciprocal(multiplierOf(*p.to.amax, p.to.isE5M2));
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

template <Mode M, bool kCentered, bool kAdd, Form kForm>
__global__ void __launch_bounds__(1024) normForward(const Forward p) {
  awaitPrevious();
  int64_t row = blockIdx.x, base = row * p.cols, stride = static_cast<int64_t>(blockDim.x) * kChunk;
  int64_t first = static_cast<int64_t>(threadIdx.x) * kChunk;
  auto countAt = [&](int64_t c) {
    return static_cast<int>(p.cols - c >= kChunk ? kChunk : p.cols > c ? p.cols - c : 0);
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
  // All threads of a warp go on together where they have blocks.
  int64_t ahead = kForm == Form::Blocks ? threadIdx.x % kWarp * kChunk : 0;
  unsigned most = 0;
  if (first - ahead < p.cols)
    output<M, kCentered, kForm>(p, row, first, countAt(first), mean, rstd, held, most);
  for (int64_t c = first + stride; c - ahead < p.cols; c += stride) {
    load8<M>(stored, base + c, countAt(c), x);
    output<M, kCentered, kForm>(p, row, c, countAt(c), mean, rstd, x, most);
  }
  finish<kForm>(p, most);
}

// ---- rows of whole chunks that a warp holds ----

/// A row of up to 256 times kHeld elements. All loads go before the first store.
template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld>
__device__ __forceinline__ void normRow(const Forward &p, int64_t row, unsigned &most) {
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
    if (kForm == Form::Blocks || place.count(slot) > 0)
      output<M, kCentered, kForm>(p, row, place.column(slot),
                                  kForm == Form::Blocks ? place.count(slot) : kChunk, mean, rstd,
                                  x[slot], most);
}

template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld>
__global__ void __launch_bounds__(kRowWarps *kWarp) normForwardWarps(const Forward p) {
  awaitPrevious();
  int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  unsigned most = 0;
  if (row < p.rows)
    normRow<M, kCentered, kAdd, kForm, kHeld>(p, row, most);
  finish<kForm>(p, most);
}

template <Mode M, bool kCentered, bool kAdd, Form kForm>
void launchWarps(const Forward &p, Queue &queue) {
  auto kernel = normForwardWarps<M, kCentered, kAdd, kForm, 4>;
  if constexpr (kForm == Form::Stored) { // of others there are rows of large models
    int64_t chunks = ceilDiv(p.cols, int64_t{kWarp} * kChunk);
    if (chunks <= 1)
      kernel = normForwardWarps<M, kCentered, kAdd, kForm, 1>;
    else if (chunks <= 3)
      kernel = normForwardWarps<M, kCentered, kAdd, kForm, 3>;
  }
  auto blocks = static_cast<unsigned>(ceilDiv(p.rows, kRowWarps));
  launchKernel(kernel, blocks, kRowWarps * kWarp, 0, queue, p);
}

template <bool kCentered, bool kAdd, Form kForm>
void launchNorm(const Call &call, Forward &p, Mode mode) {
  const Tensor &a = call.in[0];
  p.a = dataOf(a);
  if (kAdd)
    p.b = dataOf(call.in[1]);
  p.rows = a.rows(), p.cols = a.cols();
  p.eps = static_cast<float>(call.attrs.eps);
  p.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  bool hasWarpRows = RowLayout(p.cols).warpRows;
  if (mode == Mode::Bf16 && hasWarpRows)
    return launchWarps<Mode::Bf16, kCentered, kAdd, kForm>(p, queueOf(call));
  if (mode == Mode::F16 && hasWarpRows)
    return launchWarps<Mode::F16, kCentered, kAdd, kForm>(p, queueOf(call));
  int threads = threadsForRow(p.cols, 1024);
  auto rows = static_cast<unsigned>(p.rows);
  forMode(mode, [&]<Mode M>() {
    launchKernel(normForward<M, kCentered, kAdd, kForm>, rows, threads, 0, queueOf(call), p);
  });
}

/// Operands x w [bias] and results y [mean] rstd, with the terms and their sum in front if kAdd.
template <bool kCentered, bool kAdd> void runNorm(const Call &call) {
  const Tensor *in = call.in + (kAdd ? 1 : 0), *out = call.out + (kAdd ? 1 : 0);
  const Tensor &a = call.in[0], &w = in[1], &y = out[0];
  Forward p = {};
  p.w = dataOf(w), p.y = dataOf(y);
  if (kAdd)
    p.sum = dataOf(call.out[0]);
  if (kCentered)
    p.bias = dataOf(in[2]), p.mean = static_cast<float *>(out[1].data);
  p.rstd = static_cast<float *>(out[kCentered ? 2 : 1].data);
  launchNorm<kCentered, kAdd, Form::Stored>(
      call, p,
      modeOf({&a, &call.in[kAdd ? 1 : 0], &call.out[0], &w, &in[kCentered ? 2 : 1], &y}, a.cols()));
}

/// rmsnorm of operands x w or a b w that does not store y. From result `first` on it has the sum,
/// if kAdd, and rstd; p says what becomes of y.
template <bool kAdd, Form kForm> void runUnstored(const Call &call, Forward &p, int first) {
  const Tensor &a = call.in[0], &w = call.in[kAdd ? 2 : 1], &stored = kAdd ? call.out[first] : a;
  p.w = dataOf(w), p.y = dataOf(stored), p.sum = dataOf(stored);
  p.rstd = static_cast<float *>(call.out[first + (kAdd ? 1 : 0)].data);
  std::initializer_list<const Tensor *> data = {&a, &call.in[kAdd ? 1 : 0], &w, &stored};
  launchNorm<false, kAdd, kForm>(call, p,
                                 kForm == Form::LookedAt
                                     ? modeOf(data, a.cols())
                                     : modeOfQuantised(data, call.out[0], a.cols()));
}

template <bool kAdd> void runQuantizeDelayed(const Call &call) {
  Forward p = {};
  p.to = targetOfDelayed(call, kAdd ? 3 : 2, kResultsMax);
  p.largest = p.to.seen;
  runUnstored<kAdd, Form::Quantised>(call, p, 3);
}

template <bool kAdd> void runQuantizeBlocks(const Call &call) {
  const Tensor &q = call.out[0];
  Forward p = {};
  p.blocks = {static_cast<uint8_t *>(q.data), call.out[1].data, q.dtype == DType::F8E5M2};
  runUnstored<kAdd, Form::Blocks>(call, p, 2);
}

template <bool kAdd> void runAmax(const Call &call) {
  Forward p = {};
  p.largest = clearLargest(call, kAdd ? 2 : 1);
  runUnstored<kAdd, Form::LookedAt>(call, p, 0);
}

} // namespace

const Kernel kRmsNorm = {"rmsnorm_cuda", runNorm<false, false>, acceptsAs<&host::kRmsNorm>};
const Kernel kAddRmsNorm = {"add_rmsnorm_cuda", runNorm<false, true>,
                            acceptsAs<&host::kAddRmsNorm>};
const Kernel kRmsNormQuantizeDelayed = {"rmsnorm_quantize_delayed_cuda", runQuantizeDelayed<false>,
                                        acceptsAs<&host::kRmsNormQuantizeDelayed>};
const Kernel kAddRmsNormQuantizeDelayed = {"add_rmsnorm_quantize_delayed_cuda",
                                           runQuantizeDelayed<true>,
                                           acceptsAs<&host::kAddRmsNormQuantizeDelayed>};
const Kernel kRmsNormQuantizeBlocks = {"rmsnorm_quantize_blocks_cuda", runQuantizeBlocks<false>,
                                       acceptsAs<&host::kRmsNormQuantizeBlocks>};
const Kernel kAddRmsNormQuantizeBlocks = {"add_rmsnorm_quantize_blocks_cuda",
                                          runQuantizeBlocks<true>,
                                          acceptsAs<&host::kAddRmsNormQuantizeBlocks>};
const Kernel kRmsNormAmax = {"rmsnorm_amax_cuda", runAmax<false>, acceptsAs<&host::kRmsNormAmax>};
const Kernel kAddRmsNormAmax = {"add_rmsnorm_amax_cuda", runAmax<true>,
                                acceptsAs<&host::kAddRmsNormAmax>};
const Kernel kLayerNorm = {"layernorm_cuda", runNorm<true, false>, acceptsAs<&host::kLayerNorm>};
const Kernel kAddLayerNorm = {"add_layernorm_cuda", runNorm<true, true>,
                              acceptsAs<&host::kAddLayerNorm>};

} // namespace shardc::kernels::cuda
