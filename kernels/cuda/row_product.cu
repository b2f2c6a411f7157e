// c[1,n] (+)= a[1,k]·bᵀ + bias[n] with b[n,k] in bf16 or f16, as a token that is generated needs
// it. Mapping: a warp computes one element, and its lanes read chunks of the row of b, four of them
// ahead. All warps read a, which stays in the L1 cache. Limited by the memory that has b.
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256, kAhead = 4;

struct RowProduct {
  Data a, b, bias, c, added;
  int64_t n, k, stepOfB;
  float alpha, beta;
  bool hasBias, hasAdded;
};

template <Mode M> __global__ void __launch_bounds__(kThreads) rowProduct(const RowProduct p) {
  awaitPrevious();
  const int lane = threadIdx.x % kWarp;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (column >= p.n)
    return;
  const uint4 *a = chunkOf(p.a, 0), *b = chunkOf(p.b, column * p.stepOfB);
  float sum = 0;
  auto add = [&](uint4 left, uint4 right) {
    float x[kChunk], w[kChunk];
    unpack<M>(p.a, left, x);
    unpack<M>(p.b, right, w);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum += x[j] * w[j];
  };
  const int64_t chunks = p.k / kChunk;
  int64_t at = lane;
  for (; at + (kAhead - 1) * kWarp < chunks; at += kAhead * kWarp) {
    uint4 next[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      next[i] = __ldcs(b + at + i * kWarp);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      add(a[at + i * kWarp], next[i]);
  }
  for (; at < chunks; at += kWarp)
    add(a[at], __ldcs(b + at));
  sum = warpSum(sum);
  if (lane != 0)
    return;
  const float value = p.alpha * sum + (p.hasBias ? element(p.bias, column) : 0.0f);
  setElement(p.c, column, p.hasAdded ? value + p.beta * element(p.added, column) : value);
}

} // namespace

bool launchRowProduct(const Gemm &g, Queue &queue) {
  auto isWhole = [](const void *address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  const int64_t step = g.stepsB.row > 0 ? g.stepsB.row : g.k;
  const bool serves = g.m == 1 && g.batches == 1 && g.transB && !g.transA && !g.isScaled &&
                      dtypeBytes(g.in) == 2 && g.k % kChunk == 0 && step % kChunk == 0 &&
                      isWhole(g.a) && isWhole(g.b);
  if (!serves)
    return false;
  auto data = [](const void *address, DType type) {
    return Data{const_cast<void *>(address), formatOf(type)};
  };
  RowProduct p = {data(g.a, g.in), data(g.b, g.in), data(g.bias, g.out), data(g.c, g.out),
                  data(g.added, g.out)};
  p.n = g.n, p.k = g.k, p.stepOfB = step;
  p.alpha = g.alpha, p.beta = g.beta;
  p.hasBias = g.bias != nullptr, p.hasAdded = g.added != nullptr;
  p.c.accumulate = g.accumulate && !p.hasAdded;
  const auto blocks = static_cast<unsigned>(ceilDiv(g.n, kThreads / kWarp));
  launchKernel(g.in == DType::F16 ? rowProduct<Mode::F16> : rowProduct<Mode::Bf16>, blocks,
               kThreads, 0, queue, p);
  return true;
}

} // namespace shardc::kernels::cuda
