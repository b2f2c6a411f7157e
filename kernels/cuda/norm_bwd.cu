// Gradients of the norms. With g = dy·w and h = (x - mean)·rstd (mean 0 for rmsnorm):
//   dx = rstd·(g - mean(g) - h·mean(g·h)) + dres      (rmsnorm: without mean(g))
//   dw (+)= sum over rows of dy·h, dbias (+)= sum over rows of dy
// Data f32 or bf16 each, statistics and sums f32.
// Mapping: at most 264 blocks (two for each of an H200's multiprocessors) that each take every 264th
// row, one chunk of 8 columns a thread. A thread keeps its columns' sums in registers over all its rows
// (columns beyond 8192 in shared memory); blocks' sums are partials that a second kernel adds in order.
// Limited by memory: dy, x and dres read once, dx written once.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kBlocksMax = 264;
constexpr int kThreadsMax = 1024;
constexpr int64_t kColsMax = 24576; ///< sums of what lies beyond the registers fit in shared memory

struct Backward {
  Data dy, x, w, dres, dx;
  const float *mean, *rstd;
  float *partials; ///< [blocks, dw and dbias, cols]
  int64_t rows, cols;
  float plus;
  bool hasResidual;
};

struct RowStatistics {
  float mean, rstd;
};

/// g and h of a chunk; dy is left in `dy`.
template <Mode M>
__device__ __forceinline__ void terms(const Backward &p, int64_t base, int64_t c, int n,
                                      RowStatistics s, float (&dy)[kChunk], float (&g)[kChunk],
                                      float (&h)[kChunk]) {
  float w[kChunk];
  load8<M>(p.dy, base + c, n, dy);
  load8<M>(p.x, base + c, n, h);
  load8<M>(p.w, c, n, w);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    g[j] = dy[j] * (w[j] + p.plus);
    h[j] = j < n ? (h[j] - s.mean) * s.rstd : 0.0f;
  }
}

template <Mode M, bool kCentered>
__device__ __forceinline__ void writeInputGradient(const Backward &p, int64_t at, int n, float rstd,
                                                   const float (&means)[2], const float (&g)[kChunk],
                                                   const float (&h)[kChunk]) {
  float dx[kChunk], dres[kChunk] = {};
  if (p.hasResidual)
    load8<M>(p.dres, at, n, dres);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    dx[j] = rstd * (g[j] - (kCentered ? means[1] : 0.0f) - h[j] * means[0]) + dres[j];
  store8<M>(p.dx, at, n, dx);
}

template <Mode M, bool kCentered>
__global__ void __launch_bounds__(kThreadsMax) normBackward(const Backward p) {
  extern __shared__ float beyond[]; // sums of columns from `stride` on: dw, then dbias
  constexpr int kResults = kCentered ? 2 : 1;
  int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  int64_t first = static_cast<int64_t>(threadIdx.x) * kChunk;
  int64_t beyondCols = p.cols > stride ? p.cols - stride : 0;
  auto countAt = [&](int64_t c) {
    return static_cast<int>(p.cols - c < kChunk ? p.cols - c : kChunk);
  };
  float dw[kChunk] = {}, dbias[kChunk] = {};
  for (int64_t c = first + stride; c < p.cols; c += stride)
    for (int j = 0; j < countAt(c); ++j)
      for (int r = 0; r < kResults; ++r)
        beyond[r * beyondCols + c - stride + j] = 0.0f;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    int64_t base = row * p.cols;
    RowStatistics s = {kCentered ? p.mean[row] : 0.0f, p.rstd[row]};
    float dy[kChunk], g0[kChunk] = {}, h0[kChunk] = {}, g[kChunk], h[kChunk], means[2] = {};
    if (first < p.cols) {
      terms<M>(p, base, first, countAt(first), s, dy, g0, h0);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        dw[j] += dy[j] * h0[j];
        dbias[j] += dy[j];
        means[0] += g0[j] * h0[j];
        means[1] += g0[j];
      }
    }
    for (int64_t c = first + stride; c < p.cols; c += stride) {
      terms<M>(p, base, c, countAt(c), s, dy, g, h);
      for (int j = 0; j < countAt(c); ++j) {
        beyond[c - stride + j] += dy[j] * h[j];
        if (kCentered)
          beyond[beyondCols + c - stride + j] += dy[j];
        means[0] += g[j] * h[j];
        means[1] += g[j];
      }
    }
    blockSum(means);
    means[0] /= static_cast<float>(p.cols);
    means[1] /= static_cast<float>(p.cols);
    if (first < p.cols)
      writeInputGradient<M, kCentered>(p, base + first, countAt(first), s.rstd, means, g0, h0);
    for (int64_t c = first + stride; c < p.cols; c += stride) {
      terms<M>(p, base, c, countAt(c), s, dy, g, h);
      writeInputGradient<M, kCentered>(p, base + c, countAt(c), s.rstd, means, g, h);
    }
  }
  float *partials = p.partials + static_cast<int64_t>(blockIdx.x) * kResults * p.cols;
  for (int64_t c = first; c < p.cols; c += stride)
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (j < countAt(c)) {
        bool inRegisters = c == first;
        partials[c + j] = inRegisters ? dw[j] : beyond[c - stride + j];
        if (kCentered)
          partials[p.cols + c + j] = inRegisters ? dbias[j] : beyond[beyondCols + c - stride + j];
      }
}

int blocksFor(int64_t rows) { return static_cast<int>(std::min<int64_t>(rows, kBlocksMax)); }

template <bool kCentered> struct Buffers {
  float *partials;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &x = call.in[1];
    partials = scratch.take<float>(blocksFor(x.rows()) * (kCentered ? 2 : 1) * x.cols());
  }
};

template <bool kCentered> const char *accepts(const Call &call) {
  if (const char *reason =
          (kCentered ? host::kLayerNormBwd : host::kRmsNormBwd).accepts(call))
    return reason;
  return call.in[1].cols() > kColsMax ? "a row is longer than 24576 elements" : nullptr;
}

template <bool kCentered> void runNormBwd(const Call &call) {
  Scratch scratch(call);
  Buffers<kCentered> buffers(call, scratch);
  constexpr int kStatistics = kCentered ? 2 : 1;
  const Tensor &dy = call.in[0], &x = call.in[1], &w = call.in[2], &dx = call.out[0];
  bool hasResidual = call.inCount > 3 + kStatistics;
  const Tensor &dres = hasResidual ? call.in[3 + kStatistics] : dy;
  Backward p = {dataOf(dy), dataOf(x), dataOf(w), dataOf(dres), dataOf(dx)};
  p.mean = kCentered ? static_cast<const float *>(call.in[3].data) : nullptr;
  p.rstd = static_cast<const float *>(call.in[2 + kStatistics].data);
  p.partials = buffers.partials;
  p.rows = x.rows(), p.cols = x.cols();
  p.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  p.hasResidual = hasResidual;
  int threads = threadsForRow(p.cols, kThreadsMax), blocks = blocksFor(p.rows);
  int64_t beyondCols = std::max<int64_t>(p.cols - static_cast<int64_t>(threads) * kChunk, 0);
  auto shared = static_cast<size_t>(beyondCols) * kStatistics * sizeof(float);
  forMode(modeOf({&dy, &x, &w, &dres, &dx}, p.cols), [&]<Mode M>() {
    if (shared > 48 * 1024)
      cudaFuncSetAttribute(normBackward<M, kCentered>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared));
    normBackward<M, kCentered><<<blocks, threads, shared, streamOf(call)>>>(p);
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
