// Gradients of the norms. With g = dy·w and h = (x - mean)·rstd (mean 0 for rmsnorm):
//   dx = rstd·(g - mean(g) - h·mean(g·h)) + dres      (rmsnorm: without mean(g))
//   dw (+)= sum over rows of dy·h, dbias (+)= sum over rows of dy
//   y = h·w, recomputed if rmsnorm has to
// For weights that are not trained, partial sums are computed, but not added. Data are f32, bf16 or
// f16 each, statistics and sums f32.
//
// Mapping: a fixed number of blocks process rows in a loop. A thread keeps its columns' sums over
// all of its rows in registers; a second kernel adds the blocks' partial sums in order. Rows of
// whole chunks, up to 8192 elements, have one thread per chunk, which loads the next row's chunk
// before it computes this row's sums. If rows have up to 256 elements, as heads do, a block
// processes several of them side by side. Other rows stay in the registers of a warp or a block
// (rows.cuh).
//
// Limited by memory: dy, x and dres are read once, dx and y written once. H200, 2026-11, of a
// copy's 4.24 TB/s, rows of 4096 / 768: rmsnorm_bwd 2.6 / 2.8, layernorm_bwd 2.4 / 2.6; rows of
// 2048 with dres and y: 3.6.
#include <bit>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/rows.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kBlocksMax = 528; ///< four for each multiprocessor of an H200

struct Backward {
  Data dy, x, w, dres, dx, y;
  const float *mean, *rstd;
  float *partials; ///< [blocks, dw and dbias, cols]
  int64_t rows, cols;
  float plus;
  bool hasResidual, hasY, warpRows;
  int lanes; ///< threads per row if rows are short
};

/// Computes g and h of a chunk, and reads dy. Beyond the row's end, all are zero.
template <Mode M>
__device__ __forceinline__ void terms(const Backward &p, int64_t base, int64_t c, int n, float mean,
                                      float rstd, float (&dy)[kChunk], float (&g)[kChunk],
                                      float (&h)[kChunk]) {
  float w[kChunk];
  load8<M>(p.dy, base + c, n, dy);
  load8<M>(p.x, base + c, n, h);
  load8<M>(p.w, c, n, w);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    g[j] = dy[j] * (w[j] + p.plus);
    h[j] = j < n ? (h[j] - mean) * rstd : 0.0f;
  }
}

/// Writes a row's gradient and adds the row's terms to the sums. The second pass over the row reads
/// dy and x again, from the L1 cache, because registers cannot hold them beside the sums.
template <Mode M, bool kCentered>
__device__ __forceinline__ void differentiateRow(const Backward &p, const RowPlace &place,
                                                 int64_t row, float (&dw)[kSlots][kChunk],
                                                 float (&dbias)[kSlots][kChunk]) {
  int64_t base = row * p.cols;
  float mean = kCentered ? p.mean[row] : 0.0f, rstd = p.rstd[row];
  float dy[kChunk], g[kChunk], h[kChunk], means[2] = {};
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (place.count(slot) == 0)
      continue;
    terms<M>(p, base, place.column(slot), place.count(slot), mean, rstd, dy, g, h);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      dw[slot][j] += dy[j] * h[j];
      if (kCentered)
        dbias[slot][j] += dy[j];
      means[0] += g[j] * h[j];
      means[1] += g[j];
    }
  }
  rowSum(means, p.warpRows);
  means[0] /= static_cast<float>(p.cols);
  means[1] = kCentered ? means[1] / static_cast<float>(p.cols) : 0.0f;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (place.count(slot) == 0)
      continue;
    float dx[kChunk] = {};
    terms<M>(p, base, place.column(slot), place.count(slot), mean, rstd, dy, g, h);
    if (p.hasResidual)
      load8<M>(p.dres, base + place.column(slot), place.count(slot), dx);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      dx[j] += rstd * (g[j] - means[1] - h[j] * means[0]);
    store8<M>(p.dx, base + place.column(slot), place.count(slot), dx);
    if (!kCentered && p.hasY) {
      load8<M>(p.w, place.column(slot), place.count(slot), g);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        g[j] = h[j] * (g[j] + p.plus);
      store8<M>(p.y, base + place.column(slot), place.count(slot), g);
    }
  }
}

/// Writes a thread's sums to the block's partial sums. If each warp has its own rows, the warps'
/// sums are added first, in the order of warps.
__device__ __forceinline__ void writePartials(const Backward &p, const RowPlace &place,
                                              float *shared, const float (&sums)[kSlots][kChunk],
                                              float *partials) {
  float *to = p.warpRows ? shared + threadIdx.x / kWarp * p.cols : partials;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (j < place.count(slot))
        to[place.column(slot) + j] = sums[slot][j];
  if (!p.warpRows)
    return;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    float total = 0;
    for (int warp = 0; warp < kRowWarps; ++warp)
      total += shared[warp * p.cols + c];
    partials[c] = total;
  }
  __syncthreads();
}

template <Mode M, bool kCentered>
__global__ void __launch_bounds__(kRowThreadsMax) normBackward(const __grid_constant__ Backward p) {
  awaitPrevious();
  extern __shared__ float shared[]; // [warps, cols] if each warp has its own rows
  constexpr int kResults = kCentered ? 2 : 1;
  RowPlace place(p.cols, p.warpRows);
  float dw[kSlots][kChunk] = {}, dbias[kSlots][kChunk] = {};
  int64_t first = p.warpRows ? static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp
                             : static_cast<int64_t>(blockIdx.x);
  int64_t step = static_cast<int64_t>(gridDim.x) * (p.warpRows ? kRowWarps : 1);
  for (int64_t row = first; row < p.rows; row += step)
    differentiateRow<M, kCentered>(p, place, row, dw, dbias);
  float *partials = p.partials + static_cast<int64_t>(blockIdx.x) * kResults * p.cols;
  writePartials(p, place, shared, dw, partials);
  if (kCentered)
    writePartials(p, place, shared, dbias, partials + p.cols);
}

// ---- rows of whole chunks with one chunk per thread, which is the usual case ----

constexpr int kStreamThreadsMax = 1024; ///< threads per block, and per multiprocessor in total
/// Threads of a block, and blocks of a multiprocessor, if a block takes several rows at a time.
constexpr int kShortThreads = 256, kShortBlocks = 3;

/// A chunk in its memory format. Chunks of the next row arrive while this row's sums are computed.
struct Raw {
  uint4 low, high;
};

template <Mode M> __device__ __forceinline__ Raw loadRaw(const Data &d, int64_t i) {
  Raw raw = {};
  if (isNarrow<M>(d)) {
    raw.low = *chunkOf(d, i);
  } else {
    const uint4 *from = reinterpret_cast<const uint4 *>(static_cast<const float *>(d.p) + i);
    raw.low = from[0], raw.high = from[1];
  }
  return raw;
}

template <Mode M>
__device__ __forceinline__ void toFloats(const Data &d, const Raw &raw, float (&v)[kChunk]) {
  if (isNarrow<M>(d))
    return unpack<M>(d, raw.low, v);
  const uint32_t words[kChunk] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                                  raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    v[j] = __uint_as_float(words[j]);
}

/// A thread's inputs for one row.
struct RowInput {
  Raw dy, x, dres;
  float mean, rstd;
};

/// A thread without columns in the row gets zeros.
template <Mode M, bool kCentered>
__device__ __forceinline__ RowInput loadRow(const Backward &p, int64_t row, int64_t c) {
  RowInput in = {};
  in.mean = kCentered ? p.mean[row] : 0.0f;
  in.rstd = p.rstd[row];
  if (c >= p.cols)
    return in;
  in.dy = loadRaw<M>(p.dy, row * p.cols + c);
  in.x = loadRaw<M>(p.x, row * p.cols + c);
  if (p.hasResidual)
    in.dres = loadRaw<M>(p.dres, row * p.cols + c);
  return in;
}

/// Adds v over the block with a single barrier. Consecutive rows alternate between two `parts`.
__device__ __forceinline__ void sumRow(float (&v)[2], float (*parts)[kWarp]) {
  int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    v[k] = warpSum(v[k]);
    if (lane == 0)
      parts[k][warp] = v[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k)
    v[k] = warpSum(lane < warps ? parts[k][lane] : 0.0f);
}

/// Writes the sums of a chunk's columns to the block's partial sums. If a block has several rows
/// side by side, their sums are added first, in order.
template <int kThreads, bool kIsShort>
__device__ __forceinline__ void writeChunkSums(const Backward &p, int64_t c,
                                               const float (&sums)[kChunk], float *partials) {
  if constexpr (!kIsShort) {
    if (c >= p.cols)
      return;
    float4 *to = reinterpret_cast<float4 *>(partials + c);
    to[0] = {sums[0], sums[1], sums[2], sums[3]}, to[1] = {sums[4], sums[5], sums[6], sums[7]};
  } else {
    __shared__ float rows[kThreads * kChunk]; // [rows side by side, cols]
    int groups = kThreads / p.lanes, group = static_cast<int>(threadIdx.x) / p.lanes;
    __syncthreads(); // earlier reads are complete
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (c < p.cols)
        rows[group * p.cols + c + j] = sums[j];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.cols; i += kThreads) {
      float total = 0;
      for (int g = 0; g < groups; ++g)
        total += rows[g * p.cols + i];
      partials[i] = total;
    }
  }
}

template <Mode M, bool kCentered, int kThreads, bool kIsShort>
__global__ void __launch_bounds__(kThreads, kIsShort ? kShortBlocks : kStreamThreadsMax / kThreads)
    normBackwardChunks(const __grid_constant__ Backward p) {
  awaitPrevious();
  __shared__ float parts[2][2][kWarp];
  constexpr int kResults = kCentered ? 2 : 1;
  int thread = static_cast<int>(threadIdx.x);
  int64_t c = int64_t{kIsShort ? thread % p.lanes : thread} * kChunk;
  int rowsBeside = kIsShort ? kThreads / p.lanes : 1;
  float w[kChunk] = {}, dw[kChunk] = {}, dbias[kChunk] = {};
  if (c < p.cols)
    load8<M>(p.w, c, kChunk, w);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    w[j] += p.plus;
  int64_t first = int64_t{blockIdx.x} * rowsBeside, step = int64_t{gridDim.x} * rowsBeside;
  int64_t row = first + (kIsShort ? thread / p.lanes : 0);
  RowInput next = row < p.rows ? loadRow<M, kCentered>(p, row, c) : RowInput{};
  // All threads of the block take part in each iteration, because they add together.
  for (int turn = 0; first < p.rows; first += step, row += step, turn ^= 1) {
    RowInput in = next;
    if (row + step < p.rows)
      next = loadRow<M, kCentered>(p, row + step, c);
    bool active = c < p.cols && row < p.rows;
    float dy[kChunk], h[kChunk], means[2] = {};
    toFloats<M>(p.dy, in.dy, dy);
    toFloats<M>(p.x, in.x, h);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      dy[j] =
          !kIsShort || active ? dy[j] : 0.0f; // beyond the last row, dy still has the last row's
      h[j] = active ? (h[j] - in.mean) * in.rstd : 0.0f;
      dw[j] += dy[j] * h[j];
      if (kCentered)
        dbias[j] += dy[j];
      dy[j] *= w[j]; // g from here on
      means[0] += dy[j] * h[j];
      means[1] += dy[j];
    }
    if constexpr (kIsShort)
      laneSums(means, p.lanes);
    else
      sumRow(means, parts[turn]);
    if (!active)
      continue;
    means[0] /= static_cast<float>(p.cols);
    means[1] = kCentered ? means[1] / static_cast<float>(p.cols) : 0.0f;
    float dx[kChunk] = {};
    if (p.hasResidual)
      toFloats<M>(p.dres, in.dres, dx);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      dx[j] += in.rstd * (dy[j] - means[1] - h[j] * means[0]);
    store8<M>(p.dx, row * p.cols + c, kChunk, dx);
    if (!kCentered && p.hasY) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        h[j] *= w[j];
      store8<M>(p.y, row * p.cols + c, kChunk, h);
    }
  }
  float *partials = p.partials + int64_t{blockIdx.x} * kResults * p.cols;
  writeChunkSums<kThreads, kIsShort>(p, c, dw, partials);
  if (kCentered)
    writeChunkSums<kThreads, kIsShort>(p, c, dbias, partials + p.cols);
}

constexpr int64_t kShortColsMax = int64_t{kWarp} * kChunk;

/// Threads per short row.
int lanesOf(int64_t cols) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(ceilDiv(cols, kChunk))));
}

bool hasChunkRows(const Tensor &x) {
  return x.cols() % kChunk == 0 && x.cols() <= kStreamThreadsMax * kChunk;
}

/// Number of blocks that fill the multiprocessors, limited by the number of rows.
int chunkBlocks(const Call &call, const Tensor &x) {
  constexpr int kBlocksEachMax = 6;
  const int multiprocessors = multiprocessorsOf(call);
  if (x.cols() <= kShortColsMax) {
    int64_t groups = ceilDiv(x.rows() * lanesOf(x.cols()), kShortThreads);
    return static_cast<int>(std::min<int64_t>(groups, multiprocessors * kShortBlocks));
  }
  int threads = threadsForRow(x.cols(), kStreamThreadsMax);
  int each = std::clamp(kStreamThreadsMax / threads, 1, kBlocksEachMax);
  return static_cast<int>(std::min<int64_t>(x.rows(), multiprocessors * each));
}

template <bool kCentered>
void launchChunks(const Call &call, const Backward &p, Mode mode, const Tensor &x) {
  bool isShort = x.cols() <= kShortColsMax;
  int threads = isShort ? kShortThreads : threadsForRow(x.cols(), kStreamThreadsMax);
  auto launch = [&]<Mode M>() {
    auto kernel = isShort          ? normBackwardChunks<M, kCentered, kShortThreads, true>
                  : threads <= 256 ? normBackwardChunks<M, kCentered, 256, false>
                  : threads <= 512 ? normBackwardChunks<M, kCentered, 512, false>
                                   : normBackwardChunks<M, kCentered, 1024, false>;
    launchKernel(kernel, chunkBlocks(call, x), threads, 0, queueOf(call), p);
  };
  if (mode == Mode::Bf16)
    launch.template operator()<Mode::Bf16>();
  else if (mode == Mode::F16)
    launch.template operator()<Mode::F16>();
  else
    launch.template operator()<Mode::Mixed>();
}

int blocksFor(const Call &call, const Tensor &x) {
  if (hasChunkRows(x)) // also enough if addresses are not multiples of 16 bytes
    return chunkBlocks(call, x);
  RowLayout layout(x.cols());
  // If each warp has its own rows, two such blocks fill a multiprocessor.
  int most = layout.warpRows ? kBlocksMax / 2 : kBlocksMax;
  return static_cast<int>(std::min<int64_t>(ceilDiv(x.rows(), layout.rowsPerBlock()), most));
}

template <bool kCentered> struct Buffers {
  float *partials;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &x = call.in[1];
    partials = scratch.take<float>(blocksFor(call, x) * (kCentered ? 2 : 1) * x.cols());
  }
};

template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (const char *reason = kOracle->accepts(call))
    return reason;
  return checkRowLength(call.in[1].cols());
}

/// `kHasOwn`: the op may have a gradient of its weight; rmsnorm always has one, layernorm may.
template <bool kCentered, bool kHasOwn = true>
void runNormBwd(const Call &call, const Buffers<kCentered> &buffers) {
  constexpr int kStatistics = kCentered ? 2 : 1;
  const Tensor &dy = call.in[0], &x = call.in[1], &w = call.in[2], &dx = call.out[0];
  bool hasResidual = call.inCount > 3 + kStatistics;
  const Tensor &dres = hasResidual ? call.in[3 + kStatistics] : dy;
  constexpr int kY = kHasOwn ? 2 : 1;
  bool hasY = !kCentered && call.outCount > kY;
  const Tensor &y = hasY ? call.out[kY] : dx;
  RowLayout layout(x.cols());
  Backward p = {dataOf(dy), dataOf(x), dataOf(w), dataOf(dres), dataOf(dx), dataOf(y)};
  p.mean = kCentered ? static_cast<const float *>(call.in[3].data) : nullptr;
  p.rstd = static_cast<const float *>(call.in[2 + kStatistics].data);
  p.partials = buffers.partials;
  p.rows = x.rows(), p.cols = x.cols();
  p.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  p.hasResidual = hasResidual, p.hasY = hasY, p.warpRows = layout.warpRows;
  p.lanes = lanesOf(p.cols);
  int blocks = blocksFor(call, x);
  Mode mode = modeOf({&dy, &x, &w, &dres, &dx, &y}, p.cols);
  if (hasChunkRows(x) && mode != Mode::Scalar) {
    launchChunks<kCentered>(call, p, mode, x);
  } else {
    size_t shared = layout.warpRows ? static_cast<size_t>(kRowWarps * p.cols) * sizeof(float) : 0;
    forMode(mode, [&]<Mode M>() {
      launchKernel(normBackward<M, kCentered>, blocks, layout.threads(), shared, queueOf(call), p);
    });
  }
  if (!kHasOwn || (kCentered && call.outCount == 1))
    return;
  ColumnTargets targets = {};
  for (int r = 0; r < kStatistics; ++r)
    targets.out[r] = dataOf(call.out[1 + r]);
  launchAddPartials(call, buffers.partials, blocks, kStatistics, p.cols, targets);
}

} // namespace

SHARDC_KERNEL(RmsNormBwd, accepts, withBuffers<runNormBwd<false>>);
SHARDC_KERNEL(RmsNormDx, accepts, withBuffers<runNormBwd<false, false>>);
SHARDC_KERNEL(LayerNormBwd, accepts, withBuffers<runNormBwd<true>>);

} // namespace shardc::kernels::cuda
