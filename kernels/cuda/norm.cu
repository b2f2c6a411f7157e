// Norms over the last dimension:
//  rmsnorm: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y = x·rstd·w (w + 1 if zero_centered)
//  layernorm, in two passes: mean, then rstd of (x - mean); y = (x - mean)·rstd·w + bias
//  add_*: the norm of the sum a + b, as it is stored
//  ops that quantise y: they write it in 8 bits, bitwise equal to quantize_delayed of the y that
//    the norm would store
// Data are f32, bf16 or f16 each; statistics are sums in f32. Mapping: rows of whole chunks of one
// 16-bit type, up to 16384 elements, stay in the registers of a warp or a block (rows.cuh), which
// processes rows in a loop. Weights stay in registers, and the next row is loaded while the current
// one is normalised. A row of another kind has its own block with a chunk of 8 elements per thread;
// chunks beyond the block's width are read again, from cache. Limited by memory: x (or a, b) is
// read once, y (and the sum) is written once.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/quantize_blocks.cuh"
#include "kernels/cuda/rows.cuh"

namespace shardc::kernels::cuda {
namespace {

/// What happens to y: it is stored, quantised by a known amax or by the amaxes of its blocks, or
/// only its amax is computed. NotStored: a kernel for f16, or for rows that do not fit into
/// registers, chooses among the last three at run time, because models in 8 bits seldom use them.
enum class Form { Stored, Quantised, Blocks, AmaxOnly, NotStored };

struct Forward {
  Data a, b, sum, w, bias, y;
  Target to;          ///< destination of y in 8 bits; y itself is unused then
  BlockTarget blocks; ///< destination of y in 8 bits with scales of blocks of 1 by 128
  unsigned *largest;  ///< destination of the amax of y; may be null
  float *mean, *rstd;
  int64_t rows, cols;
  float eps, plus;
  Form form;
};

/// Weights and biases of a chunk of columns.
template <Mode M> struct Weights {
  Chunk<M> w, bias;

  template <bool kCentered>
  __device__ __forceinline__ void read(const Forward &p, int64_t c, int n) {
    w = readChunk<M>(p.w, c, n);
    if (kCentered)
      bias = readChunk<M>(p.bias, c, n);
  }
};

/// The elements to normalise: a, or a + b, which is also stored.
template <Mode M, bool kAdd>
__device__ __forceinline__ Chunk<M> input(const Forward &p, int64_t at, int n, const Chunk<M> &a,
                                          const Chunk<M> &b) {
  if (!kAdd)
    return a;
  float x[kChunk], term[kChunk];
  floatsOf<M>(a, x);
  floatsOf<M>(b, term);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    x[j] += term[j];
  Chunk<M> sum = roundedChunk<M>(p.sum, x);
  writeChunk<M>(p.sum, at, n, sum);
  return sum;
}

/// Values that all chunks of a row share.
struct RowScale {
  float mean, rstd;
  float multiplier; ///< multiplier of y, if its amax is known in advance
};

/// A chunk of y, rounded as it would be stored.
template <Mode M, bool kCentered>
__device__ __forceinline__ Chunk<M> normalised(const Forward &p, int n, const RowScale &scale,
                                               const Chunk<M> &held, const Weights<M> &weights) {
  float x[kChunk], w[kChunk], bias[kChunk] = {};
  floatsOf<M>(held, x);
  floatsOf<M>(weights.w, w);
  if (kCentered)
    floatsOf<M>(weights.bias, bias);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    x[j] = (x[j] - (kCentered ? scale.mean : 0.0f)) * scale.rstd * (w[j] + p.plus);
    if (kCentered)
      x[j] += bias[j];
    if (M == Mode::Scalar)
      x[j] = j < n ? x[j] : 0.0f;
  }
  return roundedChunk<M>(p.y, x);
}

/// Stores, quantises or records n > 0 elements of y. Quantisation in blocks has its own functions.
template <Mode M, Form kForm>
__device__ __forceinline__ void output(const Forward &p, int64_t at, int n, const RowScale &scale,
                                       const Chunk<M> &y, Amax<M> &most) {
  if constexpr (kForm == Form::NotStored) {
    if (p.form == Form::Quantised)
      output<M, Form::Quantised>(p, at, n, scale, y, most);
    else if (p.form == Form::AmaxOnly)
      output<M, Form::AmaxOnly>(p, at, n, scale, y, most);
  } else if constexpr (kForm == Form::Stored) {
    writeChunk<M>(p.y, at, n, y);
  } else if constexpr (kForm == Form::Quantised) {
    storeRow<M>(p.to.q, at, n, codesOf<M>(p.to, scale.multiplier, y, most));
  } else {
    most.join(y);
  }
}

/// Reads the multiplier of a kernel's results once.
template <Form kForm> __device__ __forceinline__ float multiplierIn(const Forward &p) {
  if constexpr (kForm == Form::NotStored)
    return p.form == Form::Quantised ? multiplierIn<Form::Quantised>(p) : 1.0f;
  else
    return kForm == Form::Quantised ? multiplierOf(*p.to.amax, p.to.isE5M2) : 1.0f;
}

/// Records the amax of a kernel's results and writes the scale. All threads of the kernel call it
/// after their rows.
template <Form kForm, Mode M>
__device__ __forceinline__ void finish(const Forward &p, float multiplier, const Amax<M> &most) {
  if constexpr (kForm == Form::NotStored) {
    if (p.form == Form::Quantised)
      finish<Form::Quantised>(p, multiplier, most);
    else if (p.form == Form::AmaxOnly)
      finish<Form::AmaxOnly>(p, multiplier, most);
  } else {
    if constexpr (kForm == Form::Quantised || kForm == Form::AmaxOnly)
      joinLargest(most.bits(), p.largest);
    if (kForm == Form::Quantised && blockIdx.x == 0 && threadIdx.x == 0)
      *p.to.scale = reciprocal(multiplier);
  }
}

__device__ __forceinline__ void storeMoments(const Forward &p, int64_t row, const RowScale &scale,
                                             bool isCentered) {
  p.rstd[row] = scale.rstd;
  if (isCentered)
    p.mean[row] = scale.mean;
}

/// Adds the first n elements of a chunk to `total`; addSquares() adds the squares of (x - mean).
template <Mode M>
__device__ __forceinline__ void addElements(const Chunk<M> &chunk, int n, float &total) {
  float x[kChunk];
  floatsOf<M>(chunk, x);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    if (j < n)
      total += x[j];
}
template <Mode M>
__device__ __forceinline__ void addSquares(const Chunk<M> &chunk, int n, float mean, float &total) {
  float x[kChunk];
  floatsOf<M>(chunk, x);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    if (j < n)
      total = __fmaf_rn(x[j] - mean, x[j] - mean, total);
}

// ---- rows of any length and type ----

/// The kernel for rows of any length, with one block per row, for all forms of y.
template <Mode M, bool kCentered, bool kAdd, Form kForm>
__global__ void __launch_bounds__(1024) normForward(const __grid_constant__ Forward p) {
  awaitPrevious();
  int64_t row = blockIdx.x, base = row * p.cols, stride = static_cast<int64_t>(blockDim.x) * kChunk;
  int64_t first = static_cast<int64_t>(threadIdx.x) * kChunk;
  auto countAt = [&](int64_t c) {
    return static_cast<int>(p.cols - c >= kChunk ? kChunk : p.cols > c ? p.cols - c : 0);
  };
  const Data &stored = kAdd ? p.sum : p.a;
  Chunk<M> held = {}, x;
  float total[1] = {0.0f};
  for (int64_t c = first; c < p.cols; c += stride) {
    int n = countAt(c);
    Chunk<M> b = {};
    if (kAdd)
      b = readChunk<M>(p.b, base + c, n);
    x = input<M, kAdd>(p, base + c, n, readChunk<M>(p.a, base + c, n), b);
    if (kCentered)
      addElements<M>(x, n, total[0]);
    else
      addSquares<M>(x, n, 0.0f, total[0]);
    if (c == first)
      held = x;
  }
  blockSum(total);
  float mean = 0, n = static_cast<float>(p.cols);
  if (kCentered) {
    mean = total[0] / n;
    total[0] = 0;
    addSquares<M>(held, countAt(first), mean, total[0]);
    for (int64_t c = first + stride; c < p.cols; c += stride) {
      x = readChunk<M>(stored, base + c, countAt(c));
      addSquares<M>(x, countAt(c), mean, total[0]);
    }
    blockSum(total);
  }
  const RowScale scale = {mean, 1.0f / sqrtf(total[0] / n + p.eps), multiplierIn<kForm>(p)};
  if (threadIdx.x == 0)
    storeMoments(p, row, scale, kCentered);
  // If they quantise in blocks, all threads of a warp continue together.
  int64_t ahead = 0;
  if constexpr (kForm == Form::NotStored)
    ahead = p.form == Form::Blocks ? threadIdx.x % kWarp * kChunk : 0;
  Amax<M> most;
  Weights<M> weights;
  for (int64_t c = first; c - ahead < p.cols; c += stride) {
    int count = countAt(c);
    Chunk<M> y = {};
    if (count > 0) {
      x = c == first ? held : readChunk<M>(stored, base + c, count);
      weights.template read<kCentered>(p, c, count);
      y = normalised<M, kCentered>(p, count, scale, x, weights);
    }
    if constexpr (kForm == Form::NotStored)
      if (p.form == Form::Blocks) {
        int64_t index = c / kBlockCols * p.rows + row;
        uint2 codes = codesOfRowBlock<M, ScaleBlocks::Rows128>(y, p.blocks, index,
                                                               c % kBlockCols == 0 && count > 0);
        if (count > 0)
          storeRow<M>(p.blocks.q, base + c, count, codes);
        continue;
      }
    if (count > 0)
      output<M, kForm>(p, base + c, count, scale, y, most);
  }
  finish<kForm>(p, scale.multiplier, most);
}

// ---- rows of whole chunks that a warp or a block holds ----

/// A thread's chunks of a row: up to kHeld, which are loaded at the same time.
template <Mode M, bool kAdd, int kHeld> struct Row {
  Chunk<M> a[kHeld], b[kAdd ? kHeld : 1];

  __device__ __forceinline__ void read(const Forward &p, const RowPlace &place, int64_t row) {
    if (row >= p.rows)
      return;
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
      int64_t at = row * p.cols + place.column(slot);
      int n = place.has(slot) ? kChunk : 0;
      a[slot] = readChunk<M>(p.a, at, n);
      if (kAdd)
        b[slot] = readChunk<M>(p.b, at, n);
    }
  }
};

/// Quantises and stores a row whose chunks the threads hold, with scales of blocks.
template <Mode M, int kHeld>
__device__ __forceinline__ void storeBlocks(const Forward &p, const RowPlace &place, int64_t row,
                                            const Chunk<M> (&y)[kHeld]) {
  using Team = BlockTeam<M, kHeld>;
  Team team(y);
  int64_t block = place.column(team.slot()) / kBlockCols;
  bool isWriter = team.isFirst() && team.slot() < kHeld && block * kBlockCols < p.cols;
  float multiplier = multiplierOfBlock<ScaleBlocks::Rows128>(team.largest(), p.blocks,
                                                             block * p.rows + row, isWriter);
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot) {
    Chunk<M> chunk = y[slot];
    keepPacked<M>(chunk);
    float v[kChunk], its = Team::of(slot, multiplier);
    floatsOf<M>(chunk, v);
    uint2 codes = convert(p.blocks.isE5M2, its, v);
    if (place.has(slot))
      storeRow<M>(p.blocks.q, row * p.cols + place.column(slot), kChunk, codes);
  }
}

/// Normalises the row in `read`, and calls `readNext` as soon as `read` is no longer needed.
template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld, bool kWarpRows,
          typename WeightsOf, typename ReadNext>
__device__ __forceinline__ void normaliseRow(const Forward &p, const RowPlace &place, int64_t row,
                                             const Row<M, kAdd, kHeld> &read, float multiplier,
                                             const WeightsOf &weightsOf, Amax<M> &most,
                                             const ReadNext &readNext) {
  Chunk<M> x[kHeld]; // 0 beyond the row's end
  float total[1] = {0.0f}, n = static_cast<float>(p.cols);
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot) {
    if (!place.has(slot))
      continue;
    x[slot] = input<M, kAdd>(p, row * p.cols + place.column(slot), kChunk, read.a[slot],
                             read.b[kAdd ? slot : 0]);
    if (kCentered)
      addElements<M>(x[slot], kChunk, total[0]);
    else
      addSquares<M>(x[slot], kChunk, 0.0f, total[0]);
    keepPacked<M>(x[slot]);
  }
  readNext();
  rowSum(total, kWarpRows);
  RowScale scale = {0.0f, 0.0f, multiplier};
  if (kCentered) {
    scale.mean = total[0] / n;
    total[0] = 0;
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot)
      if (place.has(slot)) {
        addSquares<M>(x[slot], kChunk, scale.mean, total[0]);
        keepPacked<M>(x[slot]);
      }
    rowSum(total, kWarpRows);
  }
  scale.rstd = 1.0f / sqrtf(total[0] / n + p.eps);
  if (place.thread == 0)
    storeMoments(p, row, scale, kCentered);
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot) {
    if (!place.has(slot))
      continue;
    x[slot] = normalised<M, kCentered>(p, kChunk, scale, x[slot], weightsOf(slot));
    if constexpr (kForm != Form::Blocks)
      output<M, kForm>(p, row * p.cols + place.column(slot), kChunk, scale, x[slot], most);
  }
  if constexpr (kForm == Form::Blocks)
    storeBlocks<M, kHeld>(p, place, row, x);
  if constexpr (kForm == Form::NotStored)
    if (p.form == Form::Blocks)
      storeBlocks<M, kHeld>(p, place, row, x);
}

/// Each warp processes a row.
template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld>
__global__ void __launch_bounds__(kRowWarps *kWarp)
    normForwardWarps(const __grid_constant__ Forward p) {
  awaitPrevious();
  RowPlace place(p.cols, true);
  int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  float multiplier = multiplierIn<kForm>(p);
  Amax<M> most;
  if (row < p.rows) {
    Row<M, kAdd, kHeld> read;
    read.read(p, place, row);
    auto weightsOf = [&](int slot) {
      Weights<M> weights;
      weights.template read<kCentered>(p, place.column(slot), place.has(slot) ? kChunk : 0);
      return weights;
    };
    normaliseRow<M, kCentered, kAdd, kForm, kHeld, true>(p, place, row, read, multiplier, weightsOf,
                                                         most, [] {});
  }
  finish<kForm>(p, multiplier, most);
}

/// A block processes rows in a loop and reads the next row while it normalises the current one.
template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld, int kThreadsMax>
__global__ void __launch_bounds__(kThreadsMax, kHeld > 2   ? 1
                                               : kCentered ? 3
                                                           : 4)
    normForwardBlocks(const __grid_constant__ Forward p) {
  awaitPrevious();
  RowPlace place(p.cols, false);
  Row<M, kAdd, kHeld> read;
  read.read(p, place, blockIdx.x);
  Weights<M> weights[kHeld];
#pragma unroll
  for (int slot = 0; slot < kHeld; ++slot)
    weights[slot].template read<kCentered>(p, place.column(slot), place.has(slot) ? kChunk : 0);
  float multiplier = multiplierIn<kForm>(p);
  Amax<M> most;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x)
    normaliseRow<M, kCentered, kAdd, kForm, kHeld, false>(
        p, place, row, read, multiplier,
        [&](int slot) -> const Weights<M> & { return weights[slot]; }, most,
        [&] { read.read(p, place, row + gridDim.x); });
  finish<kForm>(p, multiplier, most);
}

template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld>
void launchWarps(const Forward &p, Queue &queue) {
  launchKernel(normForwardWarps<M, kCentered, kAdd, kForm, kHeld>,
               static_cast<unsigned>(ceilDiv(p.rows, kRowWarps)), kRowWarps * kWarp, 0, queue, p);
}

template <Mode M, bool kCentered, bool kAdd, Form kForm, int kHeld, int kThreadsMax>
void launchBlocks(const Forward &p, Queue &queue) {
  auto kernel = normForwardBlocks<M, kCentered, kAdd, kForm, kHeld, kThreadsMax>;
  int threads = static_cast<int>(ceilDiv(p.cols, int64_t{kWarp} * kHeld * kChunk)) * kWarp;
  launchKernel(kernel, persistentGrid(kernel, threads, 0, p.rows), threads, 0, queue, p);
}

/// Launches the kernel for rows of up to kRowColsMax elements in whole chunks.
template <Mode M, bool kCentered, bool kAdd, Form kForm>
void launchRowsHeld(const Forward &p, Queue &queue) {
  constexpr int kThreads = kRowThreadsMax / 2;
  int64_t chunks = ceilDiv(p.cols, int64_t{kWarp} * kChunk); ///< per thread of a warp
  if (kForm == Form::Stored && chunks <= 1)                  // otherwise rows of large models
    return launchWarps<M, kCentered, kAdd, Form::Stored, 1>(p, queue);
  if (chunks <= 3)
    return launchWarps<M, kCentered, kAdd, kForm, 3>(p, queue);
  if (chunks <= kSlots)
    return launchWarps<M, kCentered, kAdd, kForm, kSlots>(p, queue);
  if (chunks <= kThreads / kWarp * 2)
    return launchBlocks<M, kCentered, kAdd, kForm, 2, kThreads>(p, queue);
  launchBlocks<M, kCentered, kAdd, kForm, kSlots, kRowThreadsMax>(p, queue);
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
  p.form = kForm;
  bool isHeld = p.cols <= kRowColsMax;
  constexpr Form kSeldom = kForm == Form::Stored ? kForm : Form::NotStored;
  if (mode == Mode::Bf16 && isHeld)
    return launchRowsHeld<Mode::Bf16, kCentered, kAdd, kForm>(p, queueOf(call));
  if (mode == Mode::F16 && isHeld)
    return launchRowsHeld<Mode::F16, kCentered, kAdd, kSeldom>(p, queueOf(call));
  // Longer rows of one type have no kernels of their own: memory limits them, and these kernels
  // read whole chunks too.
  auto kernel = mode == Mode::Scalar ? normForward<Mode::Scalar, kCentered, kAdd, kSeldom>
                                     : normForward<Mode::Mixed, kCentered, kAdd, kSeldom>;
  launchKernel(kernel, static_cast<unsigned>(p.rows), threadsForRow(p.cols, 1024), 0, queueOf(call),
               p);
}

/// Executes a norm with operands x w [bias] and results y [mean] rstd. If kAdd, the terms precede
/// the operands instead of x, and their sum precedes the results.
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

/// Executes a norm that does not store y, with operands [x, or a b] w [bias]. From result `first`
/// on, it writes the sum (if kAdd), [mean] and rstd. p says what happens to y.
template <bool kCentered, bool kAdd, Form kForm>
void runUnstored(const Call &call, Forward &p, int first) {
  const Tensor *in = call.in + (kAdd ? 1 : 0), *out = call.out + first + (kAdd ? 1 : 0);
  const Tensor &a = call.in[0], &w = in[1], &bias = in[kCentered ? 2 : 1];
  const Tensor &stored = kAdd ? call.out[first] : a;
  p.w = dataOf(w), p.y = dataOf(stored), p.sum = dataOf(stored);
  if (kCentered)
    p.bias = dataOf(bias), p.mean = static_cast<float *>(out[0].data);
  p.rstd = static_cast<float *>(out[kCentered ? 1 : 0].data);
  std::initializer_list<const Tensor *> data = {&a, &in[0], &w, &bias, &stored};
  launchNorm<kCentered, kAdd, kForm>(call, p,
                                     kForm == Form::AmaxOnly
                                         ? modeOf(data, a.cols())
                                         : modeOfQuantised(data, call.out[0], a.cols()));
}

template <bool kCentered, bool kAdd> void runQuantizeDelayed(const Call &call) {
  Forward p = {};
  p.to = targetOfDelayed(call, 2 + int{kCentered} + int{kAdd}, kResultsMax);
  p.largest = p.to.seen;
  runUnstored<kCentered, kAdd, Form::Quantised>(call, p, 3);
}

template <bool kCentered, bool kAdd> void runQuantizeBlocks(const Call &call) {
  Forward p = {};
  p.blocks = blockTargetOf(call);
  runUnstored<kCentered, kAdd, Form::Blocks>(call, p, 2);
}

template <bool kCentered, bool kAdd> void runAmax(const Call &call) {
  Forward p = {};
  p.largest = clearLargest(call, 1 + int{kCentered} + int{kAdd});
  runUnstored<kCentered, kAdd, Form::AmaxOnly>(call, p, 0);
}

} // namespace

SHARDC_KERNEL(RmsNorm, acceptsAs, runNorm<false, false>);
SHARDC_KERNEL(AddRmsNorm, acceptsAs, runNorm<false, true>);
SHARDC_KERNEL(RmsNormQuantizeDelayed, acceptsAs, runQuantizeDelayed<false, false>);
SHARDC_KERNEL(AddRmsNormQuantizeDelayed, acceptsAs, runQuantizeDelayed<false, true>);
SHARDC_KERNEL(RmsNormQuantizeBlocks, acceptsAs, runQuantizeBlocks<false, false>);
SHARDC_KERNEL(AddRmsNormQuantizeBlocks, acceptsAs, runQuantizeBlocks<false, true>);
SHARDC_KERNEL(RmsNormAmax, acceptsAs, runAmax<false, false>);
SHARDC_KERNEL(AddRmsNormAmax, acceptsAs, runAmax<false, true>);
SHARDC_KERNEL(LayerNormQuantizeDelayed, acceptsAs, runQuantizeDelayed<true, false>);
SHARDC_KERNEL(AddLayerNormQuantizeDelayed, acceptsAs, runQuantizeDelayed<true, true>);
SHARDC_KERNEL(LayerNormQuantizeBlocks, acceptsAs, runQuantizeBlocks<true, false>);
SHARDC_KERNEL(AddLayerNormQuantizeBlocks, acceptsAs, runQuantizeBlocks<true, true>);
SHARDC_KERNEL(LayerNormAmax, acceptsAs, runAmax<true, false>);
SHARDC_KERNEL(AddLayerNormAmax, acceptsAs, runAmax<true, true>);
SHARDC_KERNEL(LayerNorm, acceptsAs, runNorm<true, false>);
SHARDC_KERNEL(AddLayerNorm, acceptsAs, runNorm<true, true>);

} // namespace shardc::kernels::cuda
