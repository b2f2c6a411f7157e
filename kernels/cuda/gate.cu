// gate, gated_norm and their gradients as kernels/host/Gate.cpp describes them. Mapping: in gate, a
// thread processes one chunk of 8 elements; in gated_norm, a warp processes a part of a row, and in
// the gradient of its weight, a thread a column of every n-th row; these sums are added in order.
// Data are f32, bf16 or f16 each, sums f32. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

template <bool kSilu> struct Gate {
  template <Mode M> __device__ void apply(float (&v)[2][kChunk]) const {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float g = v[1][j], sigmoid = sigmoidOf(g);
      v[0][j] *= kSilu ? g * sigmoid : sigmoid;
    }
  }
};

void runGate(const Call &call) {
  call.attrs.silu ? launchPointwise<2>(call, Gate<true>{})
                  : launchPointwise<2>(call, Gate<false>{});
}

struct GateBwd {
  Data dy, x, g, dx, dg;
  bool isSilu;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float dys[kChunk], xs[kChunk], gs[kChunk];
    load8<M>(dy, i, n, dys);
    load8<M>(x, i, n, xs);
    load8<M>(g, i, n, gs);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float sigmoid = sigmoidOf(gs[j]), rest = 1.0f - sigmoid;
      xs[j] *= dys[j] * sigmoid * (isSilu ? 1.0f + gs[j] * rest : rest);
      dys[j] *= isSilu ? gs[j] * sigmoid : sigmoid;
    }
    store8<M>(dx, i, n, dys);
    store8<M>(dg, i, n, xs);
  }
};

void runGateBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &g = call.in[2];
  const GateBwd op = {dataOf(dy),          dataOf(x),           dataOf(g),
                      dataOf(call.out[0]), dataOf(call.out[1]), call.attrs.silu};
  launchFlat(call, modeOf({&dy, &x, &g, &call.out[0], &call.out[1]}, 0), op, dy.numel());
}

constexpr int kGateThreads = 256, kSlabs = 256;

/// `rows`: parts of all rows, of `cols` columns each.
struct GatedNorm {
  Data dy, x, z, w, y, dz; ///< y: also dx
  float *rstd, *partials;
  int64_t rows, cols;
  int parts;
  float eps;

  /// Threads of a row: a warp, or half of one.
  __host__ __device__ int lanes() const { return cols > kWarp / 2 * kChunk ? kWarp : kWarp / 2; }
};

/// The row of a thread, and the chunks that it has of it.
struct GatedRow {
  const GatedNorm &p;
  int lanes;
  int64_t row;

  __device__ explicit GatedRow(const GatedNorm &p)
      : p(p), lanes(p.lanes()),
        row(int64_t{blockIdx.x} * (kGateThreads / lanes) + threadIdx.x / lanes) {}
  __device__ bool isThere() const { return row < p.rows; }
  __device__ bool isFirst() const { return isThere() && threadIdx.x % lanes == 0; }
  /// Calls each(at, c, n) for chunks of n elements from element `at` on, in column c of all parts.
  template <typename Each> __device__ __forceinline__ void forChunks(Each each) const {
    for (int64_t c = threadIdx.x % lanes * kChunk; isThere() && c < p.cols; c += lanes * kChunk)
      each(row * p.cols + c, row % p.parts * p.cols + c, upToChunk(p.cols - c));
  }
  __device__ __forceinline__ float mean(float sum) const {
    for (int by = lanes / 2; by > 0; by /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, by);
    return sum / static_cast<float>(p.cols);
  }
};

/// x·silu(z) in place of z.
template <Mode M>
__device__ __forceinline__ void loadGated(const GatedNorm &p, int64_t at, int n,
                                          float (&v)[kChunk]) {
  float x[kChunk];
  load8<M>(p.x, at, n, x);
  load8<M>(p.z, at, n, v);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    v[j] *= x[j] * sigmoidOf(v[j]);
}

template <Mode M>
__global__ void __launch_bounds__(kGateThreads) normGated(const __grid_constant__ GatedNorm p) {
  awaitPrevious();
  const GatedRow row(p);
  float sum = 0, v[kChunk], w[kChunk];
  row.forChunks([&](int64_t at, [[maybe_unused]] int64_t c, int n) {
    loadGated<M>(p, at, n, v);
#pragma unroll
    for (float each : v)
      sum += each * each;
  });
  const float rstd = 1.0f / sqrtf(row.mean(sum) + p.eps);
  if (row.isFirst())
    p.rstd[row.row] = rstd;
  row.forChunks([&](int64_t at, int64_t c, int n) {
    loadGated<M>(p, at, n, v);
    load8<M>(p.w, c, n, w);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] *= rstd * w[j];
    store8<M>(p.y, at, n, v);
  });
}

template <Mode M>
__global__ void __launch_bounds__(kGateThreads)
    differentiateGated(const __grid_constant__ GatedNorm p) {
  awaitPrevious();
  const GatedRow row(p);
  const float rstd = row.isThere() ? p.rstd[row.row] : 0.0f;
  float sum = 0, dy[kChunk], w[kChunk], v[kChunk], x[kChunk];
  const auto loadGradient = [&](int64_t at, int64_t c, int n) {
    load8<M>(p.dy, at, n, dy);
    load8<M>(p.w, c, n, w);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      dy[j] *= w[j];
  };
  row.forChunks([&](int64_t at, int64_t c, int n) {
    loadGradient(at, c, n);
    loadGated<M>(p, at, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum += dy[j] * v[j];
  });
  const float mean = rstd * row.mean(sum);
  row.forChunks([&](int64_t at, int64_t c, int n) {
    loadGradient(at, c, n);
    load8<M>(p.x, at, n, x);
    load8<M>(p.z, at, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float sigmoid = sigmoidOf(v[j]), silu = v[j] * sigmoid;
      const float d = rstd * (dy[j] - x[j] * silu * rstd * mean);
      v[j] = d * x[j] * (sigmoid + silu * (1.0f - sigmoid));
      x[j] = d * silu;
    }
    store8<M>(p.y, at, n, x);
    store8<M>(p.dz, at, n, v);
  });
}

/// Terms of the gradient of w. A thread has a chunk of every n-th row.
template <Mode M>
__global__ void __launch_bounds__(kGateThreads) sumGated(const __grid_constant__ GatedNorm p) {
  awaitPrevious();
  const int64_t columns = p.parts * p.cols,
                c = (int64_t{blockIdx.x} * kGateThreads + threadIdx.x) * kChunk;
  const int64_t part = c / p.cols;
  const int n = c < columns ? upToChunk(columns - c) : 0;
  float sums[kChunk] = {}, dy[kChunk], v[kChunk];
  for (int64_t row = blockIdx.y; n > 0 && row < p.rows / p.parts; row += gridDim.y) {
    load8<M>(p.dy, row * columns + c, n, dy);
    loadGated<M>(p, row * columns + c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      if (j < n)
        sums[j] +=
            dy[j] * v[j] * p.rstd[row * p.parts + (M == Mode::Scalar ? (c + j) / p.cols : part)];
  }
  for (int j = 0; j < n; ++j)
    p.partials[blockIdx.y * columns + c + j] = sums[j];
}

unsigned blocksOf(const GatedNorm &p) {
  return static_cast<unsigned>(ceilDiv(p.rows, kGateThreads / p.lanes()));
}

void runGatedNorm(const Call &call) {
  const Tensor &x = call.in[0];
  GatedNorm p = {};
  p.x = dataOf(x), p.z = dataOf(call.in[1]), p.w = dataOf(call.in[2]), p.y = dataOf(call.out[0]);
  p.rstd = static_cast<float *>(call.out[1].data);
  p.parts = static_cast<int>(call.attrs.parts), p.eps = static_cast<float>(call.attrs.eps);
  p.rows = x.rows() * p.parts, p.cols = x.cols() / p.parts;
  forMode(modeOf({&x, &call.in[1], &call.in[2], &call.out[0]}, p.cols), [&]<Mode M>() {
    launchKernel(normGated<M>, blocksOf(p), kGateThreads, 0, queueOf(call), p);
  });
}

struct NormBuffers {
  float *partials;
  NormBuffers(const Call &call, Scratch &scratch)
      : partials(scratch.take<float>(kSlabs * call.in[0].cols())) {}
};

void runGatedNormBwd(const Call &call, const NormBuffers &buffers) {
  const Tensor &x = call.in[1];
  GatedNorm p = {};
  p.dy = dataOf(call.in[0]), p.x = dataOf(x), p.z = dataOf(call.in[2]), p.w = dataOf(call.in[3]);
  p.rstd = static_cast<float *>(call.in[4].data), p.partials = buffers.partials;
  p.y = dataOf(call.out[0]), p.dz = dataOf(call.out[1]);
  p.parts = static_cast<int>(call.attrs.parts);
  p.rows = x.rows() * p.parts, p.cols = x.cols() / p.parts;
  const dim3 grid(static_cast<unsigned>(ceilDiv(x.cols(), kGateThreads * kChunk)), kSlabs);
  forMode(modeOf({&call.in[0], &x, &call.in[2], &call.in[3], &call.out[0], &call.out[1]}, p.cols),
          [&]<Mode M>() {
            launchKernel(differentiateGated<M>, blocksOf(p), kGateThreads, 0, queueOf(call), p);
            launchKernel(sumGated<M>, grid, kGateThreads, 0, queueOf(call), p);
          });
  ColumnTargets targets = {};
  targets.out[0] = dataOf(call.out[2]);
  launchAddPartials(call, p.partials, kSlabs, 1, x.cols(), targets);
}

} // namespace

SHARDC_KERNEL(Gate, acceptsAs, runGate);
SHARDC_KERNEL(GateBwd, acceptsAs, runGateBwd);
SHARDC_KERNEL(GatedNorm, acceptsAs, runGatedNorm);
SHARDC_KERNEL(GatedNormBwd, acceptsAs, withBuffers<runGatedNormBwd>);

} // namespace shardc::kernels::cuda
