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
      const float g = v[1][j], sigmoid = 1.0f / (1.0f + expf(-g));
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
      const float sigmoid = 1.0f / (1.0f + expf(-gs[j])), rest = 1.0f - sigmoid;
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

constexpr int kGateThreads = 256, kSlabs = 64;

/// `rows`: parts of all rows, of `cols` columns each.
struct GatedNorm {
  Data dy, x, z, w, y, dz; ///< y: also dx
  float *rstd, *partials;
  int64_t rows, cols;
  int parts;
  float eps;

  __device__ float weight(int64_t row, int64_t c) const {
    return element(w, row % parts * cols + c);
  }
};

__device__ __forceinline__ float siluOf(float z) { return z / (1.0f + expf(-z)); }

__global__ void __launch_bounds__(kGateThreads) normGated(const GatedNorm p) {
  awaitPrevious();
  const int64_t row = int64_t{blockIdx.x} * (kGateThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= p.rows)
    return;
  auto gated = [&](int64_t c) {
    return element(p.x, row * p.cols + c) * siluOf(element(p.z, row * p.cols + c));
  };
  float sum = 0;
  for (int64_t c = threadIdx.x % kWarp; c < p.cols; c += kWarp)
    sum += gated(c) * gated(c);
  const float rstd = 1.0f / sqrtf(warpSum(sum) / static_cast<float>(p.cols) + p.eps);
  if (threadIdx.x % kWarp == 0)
    p.rstd[row] = rstd;
  for (int64_t c = threadIdx.x % kWarp; c < p.cols; c += kWarp)
    setElement(p.y, row * p.cols + c, gated(c) * rstd * p.weight(row, c));
}

__global__ void __launch_bounds__(kGateThreads) differentiateGated(const GatedNorm p) {
  awaitPrevious();
  const int64_t row = int64_t{blockIdx.x} * (kGateThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= p.rows)
    return;
  const float rstd = p.rstd[row];
  float sum = 0;
  for (int64_t c = threadIdx.x % kWarp; c < p.cols; c += kWarp) {
    const int64_t at = row * p.cols + c;
    sum +=
        element(p.dy, at) * p.weight(row, c) * element(p.x, at) * siluOf(element(p.z, at)) * rstd;
  }
  const float mean = warpSum(sum) / static_cast<float>(p.cols);
  for (int64_t c = threadIdx.x % kWarp; c < p.cols; c += kWarp) {
    const int64_t at = row * p.cols + c;
    const float x = element(p.x, at), z = element(p.z, at), sigmoid = 1.0f / (1.0f + expf(-z));
    const float d = rstd * (element(p.dy, at) * p.weight(row, c) - x * z * sigmoid * rstd * mean);
    setElement(p.y, at, d * z * sigmoid);
    setElement(p.dz, at, d * x * sigmoid * (1.0f + z * (1.0f - sigmoid)));
  }
}

__global__ void __launch_bounds__(kGateThreads) sumGated(const GatedNorm p) {
  awaitPrevious();
  const int64_t c = int64_t{blockIdx.x} * kGateThreads + threadIdx.x, columns = p.parts * p.cols;
  float sum = 0;
  for (int64_t row = blockIdx.y; c < columns && row < p.rows / p.parts; row += gridDim.y) {
    const int64_t at = row * columns + c;
    sum += element(p.dy, at) * element(p.x, at) * siluOf(element(p.z, at)) *
           p.rstd[row * p.parts + c / p.cols];
  }
  if (c < columns)
    p.partials[blockIdx.y * columns + c] = sum;
}

unsigned blocksOf(const GatedNorm &p) {
  return static_cast<unsigned>(ceilDiv(p.rows, kGateThreads / kWarp));
}

void runGatedNorm(const Call &call) {
  const Tensor &x = call.in[0];
  GatedNorm p = {};
  p.x = dataOf(x), p.z = dataOf(call.in[1]), p.w = dataOf(call.in[2]), p.y = dataOf(call.out[0]);
  p.rstd = static_cast<float *>(call.out[1].data);
  p.parts = static_cast<int>(call.attrs.parts), p.eps = static_cast<float>(call.attrs.eps);
  p.rows = x.rows() * p.parts, p.cols = x.cols() / p.parts;
  launchKernel(normGated, blocksOf(p), kGateThreads, 0, queueOf(call), p);
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
  launchKernel(differentiateGated, blocksOf(p), kGateThreads, 0, queueOf(call), p);
  const dim3 grid(static_cast<unsigned>(ceilDiv(x.cols(), kGateThreads)), kSlabs);
  launchKernel(sumGated, grid, kGateThreads, 0, queueOf(call), p);
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
