// l2norm over the last dimension: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y = x·rstd. Backward, with
// h = x·rstd: dx = rstd·(dy - h·mean(dy·h)). Data are f32, bf16 or f16 each, rstd is f32, sums are
// f32 in a fixed order. Mapping: a warp processes a row. It reads the row's chunks of 8 elements
// twice, the second time from cache. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Norm {
  Data x, dy, to; ///< dy: only in the backward pass
  float *rstd;
  int64_t rows, cols;
  float eps;
};

/// Calls visit(first column, number of elements) for each chunk of this lane.
template <typename Visit> __device__ __forceinline__ void forChunks(int64_t cols, Visit visit) {
  for (int64_t c = static_cast<int64_t>(threadIdx.x % kWarp) * kChunk; c < cols;
       c += kWarp * kChunk)
    visit(c, upToChunk(cols - c));
}

/// A warp has one row, which it reads twice; the second time it is mostly in the cache. Backward
/// uses the stored rstd instead of computing it again.
template <Mode M, bool kBackward>
__global__ void __launch_bounds__(kThreads) normRows(const Norm p) {
  awaitPrevious();
  int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= p.rows)
    return;
  int64_t first = row * p.cols;
  float sum = 0;
  forChunks(p.cols, [&](int64_t c, int n) {
    float x[kChunk], other[kChunk];
    load8<M>(p.x, first + c, n, x);
    if (kBackward)
      load8<M>(p.dy, first + c, n, other);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum += j < n ? x[j] * (kBackward ? other[j] : x[j]) : 0.0f;
  });
  float mean = warpSum(sum) / static_cast<float>(p.cols);
  float rstd = kBackward ? p.rstd[row] : 1.0f / sqrtf(mean + p.eps);
  if (!kBackward && threadIdx.x % kWarp == 0)
    p.rstd[row] = rstd;
  forChunks(p.cols, [&](int64_t c, int n) {
    float x[kChunk], dy[kChunk];
    load8<M>(p.x, first + c, n, x);
    if (kBackward)
      load8<M>(p.dy, first + c, n, dy);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      x[j] = kBackward ? rstd * (dy[j] - x[j] * rstd * (mean * rstd)) : x[j] * rstd;
    store8<M>(p.to, first + c, n, x);
  });
}

template <bool kBackward> void run(const Call &call, const Norm &p, Mode mode) {
  auto blocks = static_cast<unsigned>(ceilDiv(p.rows, kThreads / kWarp));
  forMode(mode, [&]<Mode M>() {
    launchKernel(normRows<M, kBackward>, blocks, kThreads, 0, queueOf(call), p);
  });
}

void runL2Norm(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  Norm p = {};
  p.x = dataOf(x), p.to = dataOf(y), p.rstd = static_cast<float *>(call.out[1].data);
  p.rows = x.rows(), p.cols = x.cols(), p.eps = static_cast<float>(call.attrs.eps);
  run<false>(call, p, modeOf({&x, &y}, x.cols()));
}

void runL2NormBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  Norm p = {};
  p.x = dataOf(x), p.dy = dataOf(dy), p.to = dataOf(dx);
  p.rstd = static_cast<float *>(call.in[2].data), p.rows = x.rows(), p.cols = x.cols();
  run<true>(call, p, modeOf({&dy, &x, &dx}, x.cols()));
}

} // namespace

SHARDC_KERNEL(L2Norm, acceptsAs, runL2Norm);
SHARDC_KERNEL(L2NormBwd, acceptsAs, runL2NormBwd);

} // namespace shardc::kernels::cuda
