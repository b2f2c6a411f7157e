// Gradients of the norms. With g = dy·w and h = (x - mean)·rstd (mean 0 for rmsnorm):
//   dx = rstd·(g - mean(g) - h·mean(g·h)) + dres      (rmsnorm: without mean(g))
//   dw (+)= sum over rows of dy·h, dbias (+)= sum over rows of dy
// Data f32 or bf16 each, statistics and sums f32.
// Mapping: a row in the registers of a warp or a block (rows.cuh). A fixed number of blocks take
// rows in turn; a thread keeps its columns' sums in registers over all its rows. Warps with rows of
// their own are joined in shared memory; blocks' sums are partials that a second kernel adds in
// order. Limited by memory: dy, x and dres read once, dx written once.
// H200, 2026-11: 1.4 of a copy's 4.24 TB/s; a warp waits for its row before it loads the next.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/rows.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kBlocksMax = 528; ///< four for each of an H200's multiprocessors

struct Backward {
  Data dy, x, w, dres, dx;
  const float *mean, *rstd;
  float *partials; ///< [blocks, dw and dbias, cols]
  int64_t rows, cols;
  float plus;
  bool hasResidual, warpRows;
};

/// g and h of a chunk; dy is left in `dy`. Past the row's end all are zero.
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

/// One row: its gradient is written, its terms are added to the sums. The second pass reads dy and
/// x from the first-level cache: holding them beside the sums would take more registers than there
/// are.
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
  }
}

/// Writes a thread's sums to the block's partials; those of warps with rows of their own are added
/// in order of the warps first.
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
  extern __shared__ float shared[]; // [warps, cols] where warps have rows
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

int blocksFor(const Tensor &x) {
  RowLayout layout(x.cols());
  // A block's warps with rows of their own fill a multiprocessor by twos.
  int most = layout.warpRows ? kBlocksMax / 2 : kBlocksMax;
  return static_cast<int>(std::min<int64_t>(ceilDiv(x.rows(), layout.rowsPerBlock()), most));
}

template <bool kCentered> struct Buffers {
  float *partials;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &x = call.in[1];
    partials = scratch.take<float>(blocksFor(x) * (kCentered ? 2 : 1) * x.cols());
  }
};

template <bool kCentered> const char *accepts(const Call &call) {
  if (const char *reason = (kCentered ? host::kLayerNormBwd : host::kRmsNormBwd).accepts(call))
    return reason;
  return checkRowLength(call.in[1].cols());
}

template <bool kCentered> void runNormBwd(const Call &call) {
  Scratch scratch(call);
  Buffers<kCentered> buffers(call, scratch);
  constexpr int kStatistics = kCentered ? 2 : 1;
  const Tensor &dy = call.in[0], &x = call.in[1], &w = call.in[2], &dx = call.out[0];
  bool hasResidual = call.inCount > 3 + kStatistics;
  const Tensor &dres = hasResidual ? call.in[3 + kStatistics] : dy;
  RowLayout layout(x.cols());
  Backward p = {dataOf(dy), dataOf(x), dataOf(w), dataOf(dres), dataOf(dx)};
  p.mean = kCentered ? static_cast<const float *>(call.in[3].data) : nullptr;
  p.rstd = static_cast<const float *>(call.in[2 + kStatistics].data);
  p.partials = buffers.partials;
  p.rows = x.rows(), p.cols = x.cols();
  p.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  p.hasResidual = hasResidual, p.warpRows = layout.warpRows;
  int blocks = blocksFor(x);
  size_t shared = layout.warpRows ? static_cast<size_t>(kRowWarps * p.cols) * sizeof(float) : 0;
  forMode(modeOf({&dy, &x, &w, &dres, &dx}, p.cols), [&]<Mode M>() {
    normBackward<M, kCentered><<<blocks, layout.threads(), shared, streamOf(call)>>>(p);
  });
  ColumnTargets targets = {};
  for (int r = 0; r < kStatistics; ++r)
    targets.out[r] = dataOf(call.out[1 + r]);
  launchAddPartials(call, buffers.partials, blocks, kStatistics, p.cols, targets);
}

} // namespace

const Kernel kRmsNormBwd = {"rmsnorm_bwd_cuda", runNormBwd<false>, accepts<false>,
                            workspaceOf<Buffers<false>>};
const Kernel kLayerNormBwd = {"layernorm_bwd_cuda", runNormBwd<true>, accepts<true>,
                              workspaceOf<Buffers<true>>};

} // namespace shardc::kernels::cuda
