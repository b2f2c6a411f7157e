// Activations, by element:
//   gelu: y = x·Phi(x), by erf or by the tanh approximation; dx = dy·gelu'(x)
//   squared_relu: y = max(x, 0)²; dx = dy·2·max(x, 0)
// Gated activations, where a row of x[T,2F] holds gate, then up, and y is [T,F]:
//   swiglu: y = silu(gate)·up; dgate = dy·up·s·(1 + gate·(1 - s)), dup = dy·gate·s,
//     s = sigmoid(gate)
//   geglu: y = gelu(gate)·up; dgate = dy·up·gelu'(gate), dup = dy·gelu(gate)
//   quick_geglu: y = g·sigmoid(1.702·g)·(u + offset), where g is gate with an upper clamp and u is
//     up clamped on both sides
// weighted_swiglu and weighted_quick_geglu multiply each row of y by weights[T,1]. Data are f32,
// bf16 or f16 each, computed in fp32 and rounded once. Mapping: a thread processes one chunk of 8
// elements of each tensor; gelu and squared_relu treat tensors as flat, gated activations have one
// block column per row. For the gradients of weighted activations, a warp processes a row, and the
// sum for its weight is fp64. If the call has counts, a block processes rows of one slot and first
// adds the slot's counts; it neither reads nor writes rows beyond them. Limited by memory: swiglu
// 4.0, swiglu_bwd 3.6, gelu 3.2 and gelu_bwd 3.7 of a copy's 4.24 TB/s on an H200, 2026-11 (gelu by
// erff).
#include <type_traits>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/counts.cuh"
#include "kernels/cuda/gelu.cuh"

namespace shardc::kernels::cuda {
namespace {

struct GeluOf {
  bool tanhApprox;
  template <Mode M> __device__ void apply(float (&v)[1][kChunk]) const {
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (float &x : v[0])
        x = gelu<kBy>(x);
    });
  }
};

/// dx = dy · gelu'(x).
struct GeluGradient {
  bool tanhApprox;
  template <Mode M> __device__ void apply(float (&v)[2][kChunk]) const {
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[0][j] *= geluSlope<kBy>(v[1][j]);
    });
  }
};

struct SquaredRelu {
  template <Mode M> __device__ void apply(float (&v)[1][kChunk]) const {
#pragma unroll
    for (float &x : v[0])
      x = relu(x) * relu(x);
  }
};

/// dx = dy · 2 · max(x, 0).
struct SquaredReluGradient {
  template <Mode M> __device__ void apply(float (&v)[2][kChunk]) const {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[0][j] *= 2.0f * relu(v[1][j]);
  }
};

void runGelu(const Call &call) { launchPointwise<1>(call, GeluOf{call.attrs.tanh_approx}); }
void runGeluBwd(const Call &call) {
  launchPointwise<2>(call, GeluGradient{call.attrs.tanh_approx});
}
void runSquaredRelu(const Call &call) { launchPointwise<1>(call, SquaredRelu{}); }
void runSquaredReluBwd(const Call &call) { launchPointwise<2>(call, SquaredReluGradient{}); }

constexpr float kQuick = 1.702f;

/// quick_geglu and its gradient for 8 elements, with the interface of SwiGlu.
struct QuickGeGlu {
  float limit, offset; ///< limit: clamp of gate and up; 0 or less: none

  __device__ __forceinline__ float below(float x) const {
    return limit > 0.0f && x > limit ? limit : x;
  }
  __device__ __forceinline__ float within(float x) const {
    return limit > 0.0f && x < -limit ? -limit : below(x);
  }

  template <Mode M>
  __device__ void forward(float (&gate)[kChunk], const float (&up)[kChunk], bool) const {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      float g = below(gate[j]);
      gate[j] = g * sigmoid(kQuick * g) * (within(up[j]) + offset);
    }
  }

  template <Mode M>
  __device__ void backward(const float (&d)[kChunk], float (&gate)[kChunk], float (&up)[kChunk],
                           float (&y)[kChunk], bool) const {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      float g = below(gate[j]), u = within(up[j]), s = sigmoid(kQuick * g);
      float slope = s * (1.0f + kQuick * g * (1.0f - s));
      y[j] = g * s * (u + offset);
      gate[j] = g < gate[j] ? 0.0f : d[j] * (u + offset) * slope;
      up[j] = u < up[j] || u > up[j] ? 0.0f : d[j] * g * s;
    }
  }
};

/// Returns the activation function of a call, with its parameters.
template <typename Unit> Unit unitOf(const Call &call) {
  if constexpr (std::is_same_v<Unit, QuickGeGlu>)
    return {static_cast<float>(call.attrs.clamp), static_cast<float>(call.attrs.linear_offset)};
  else
    return {};
}

template <typename Unit> struct GatedOp {
  Unit unit;
  Data x, y;
  int64_t cols; ///< columns of y
  bool tanhApprox;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float gate[kChunk], up[kChunk];
    load8<M>(x, row * 2 * cols + c, n, gate);
    load8<M>(x, row * 2 * cols + cols + c, n, up);
    unit.template forward<M>(gate, up, tanhApprox);
    store8<M>(y, row * cols + c, n, gate);
  }
};

template <typename Unit> void runGated(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  GatedOp<Unit> op = {unitOf<Unit>(call), dataOf(x), dataOf(y), y.cols(), call.attrs.tanh_approx};
  launchRows(call, modeOf({&x, &y}, y.cols()), op, y.rows(), y.cols());
}

template <typename Unit> struct GatedBwdOp {
  Unit unit;
  Data dy, x, dx, y;
  int64_t cols; ///< columns of dy
  bool hasY, tanhApprox;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float d[kChunk], gate[kChunk], up[kChunk], again[kChunk];
    int64_t offset = row * 2 * cols + c;
    load8<M>(dy, row * cols + c, n, d);
    load8<M>(x, offset, n, gate);
    load8<M>(x, offset + cols, n, up);
    unit.template backward<M>(d, gate, up, again, tanhApprox);
    store8<M>(dx, offset, n, gate);
    store8<M>(dx, offset + cols, n, up);
    if (hasY)
      store8<M>(y, row * cols + c, n, again);
  }
};

template <typename Unit> void runGatedBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  bool hasY = call.outCount > 1;
  const Tensor &y = hasY ? call.out[1] : dx;
  GatedBwdOp<Unit> op = {unitOf<Unit>(call), dataOf(dy), dataOf(x), dataOf(dx),
                         dataOf(y),          dy.cols(),  hasY,      call.attrs.tanh_approx};
  launchRows(call, modeOf({&dy, &x, &dx, &y}, dy.cols()), op, dy.rows(), dy.cols());
}

template <typename Unit> struct WeightedOp {
  Unit unit;
  Data x, weights, y;
  int64_t cols; ///< columns of y
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float gate[kChunk], up[kChunk], weight = element(weights, row);
    load8<M>(x, row * 2 * cols + c, n, gate);
    load8<M>(x, row * 2 * cols + cols + c, n, up);
    unit.template forward<M>(gate, up, false);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      gate[j] *= weight;
    store8<M>(y, row * cols + c, n, gate);
  }
};

constexpr unsigned kCountedThreads = 256; ///< threads of a block, for one row or several

/// Threads per row, so that each has up to eight chunks. A block then has enough work to hide the
/// latency of reading counts, and wide rows are not left to a few long blocks.
unsigned threadsOfCountedRow(int64_t cols) {
  unsigned threads = kWarp;
  while (threads < kCountedThreads && int64_t{threads} * 8 * kChunk < cols)
    threads *= 2;
  return threads;
}

/// mapRows for valid rows only.
template <Mode M, typename Op>
__global__ void __launch_bounds__(kCountedThreads)
    mapCounted(const Op op, const Counts counts, unsigned threadsOfRow) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * (blockDim.x / threadsOfRow) + threadIdx.x / threadsOfRow;
  if (row >= counts.rowsOfSlot(blockIdx.y))
    return;
  row += blockIdx.y * counts.slotRows;
  int64_t step = int64_t{threadsOfRow} * kChunk;
  for (int64_t c = int64_t{threadIdx.x % threadsOfRow} * kChunk; c < op.cols; c += step)
    op.template run<M>(row, c, upToChunk(op.cols - c));
}

/// With counts of valid rows, the grid covers the slots; rows past a slot's count are skipped.
template <typename Unit> void runWeighted(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  WeightedOp<Unit> op = {unitOf<Unit>(call), dataOf(x), dataOf(call.in[1]), dataOf(y), y.cols()};
  Mode mode = modeOf({&x, &y}, op.cols);
  if (call.inCount < 3)
    return launchRows(call, mode, op, y.rows(), op.cols);
  Counts counts = countsOf(call.in[2], y.rows());
  unsigned threads = threadsOfCountedRow(op.cols);
  dim3 grid = gridOfSlots(counts, kCountedThreads / threads);
  forMode(mode, [&]<Mode M>() {
    launchKernel(mapCounted<M, WeightedOp<Unit>>, grid, kCountedThreads, 0, queueOf(call), op,
                 counts, threads);
  });
}

template <typename Unit> struct WeightedBwd {
  Unit unit;
  Data dy, x, weights, dx, dweights, y;
  int64_t rows, cols; ///< rows and columns of dy
  bool hasY;
};

constexpr int kWeightedRows = 8;   ///< rows per block: each warp has one
constexpr int kWeightedBlocks = 4; ///< blocks per multiprocessor (fewer fit with prefetching)

/// The gradient of one row, by one warp.
template <Mode M, typename Unit>
__device__ __forceinline__ void weightedBackwardOfRow(const WeightedBwd<Unit> &p, int64_t row) {
  float weight = element(p.weights, row);
  double sum = 0;
  for (int64_t c = int64_t{threadIdx.x} % kWarp * kChunk; c < p.cols; c += kWarp * kChunk) {
    int n = upToChunk(p.cols - c);
    Chunk<M> ofDy = readChunk<M>(p.dy, row * p.cols + c, n);
    Chunk<M> ofGate = readChunk<M>(p.x, row * 2 * p.cols + c, n);
    Chunk<M> ofUp = readChunk<M>(p.x, (row * 2 + 1) * p.cols + c, n);
    float d[kChunk], gate[kChunk], up[kChunk], again[kChunk], weighted[kChunk], part = 0;
    floatsOf<M>(ofDy, d), floatsOf<M>(ofGate, gate), floatsOf<M>(ofUp, up);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      weighted[j] = d[j] * weight;
    p.unit.template backward<M>(weighted, gate, up, again, false);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      part += j < n ? d[j] * again[j] : 0.0f;
      again[j] *= weight;
    }
    sum += static_cast<double>(part);
    store8<M>(p.dx, row * 2 * p.cols + c, n, gate);
    store8<M>(p.dx, (row * 2 + 1) * p.cols + c, n, up);
    if (p.hasY)
      store8<M>(p.y, row * p.cols + c, n, again);
  }
  sum = warpSum(sum);
  if (threadIdx.x % kWarp == 0)
    setElement(p.dweights, row, static_cast<float>(sum));
}

template <Mode M, typename Unit>
__global__ void __launch_bounds__(kWeightedRows *kWarp, kWeightedBlocks)
    weightedBackward(const WeightedBwd<Unit> p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * kWeightedRows + threadIdx.x / kWarp;
  if (row < p.rows)
    weightedBackwardOfRow<M>(p, row);
}

/// weightedBackward for valid rows only. A separate kernel, because counts need registers that
/// weightedBackward should not spend.
template <Mode M, typename Unit>
__global__ void __launch_bounds__(kWeightedRows *kWarp, kWeightedBlocks)
    countedBackward(const WeightedBwd<Unit> p, const Counts counts) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * kWeightedRows + threadIdx.x / kWarp;
  if (row < counts.rowsOfSlot(blockIdx.y))
    weightedBackwardOfRow<M>(p, blockIdx.y * counts.slotRows + row);
}

template <typename Unit> void runWeightedBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  bool hasY = call.outCount > 2;
  const Tensor &y = hasY ? call.out[2] : dx;
  WeightedBwd<Unit> p = {unitOf<Unit>(call),  dataOf(dy), dataOf(x), dataOf(call.in[2]), dataOf(dx),
                         dataOf(call.out[1]), dataOf(y),  dy.rows(), dy.cols(),          hasY};
  constexpr int kThreads = kWeightedRows * kWarp;
  forMode(modeOf({&dy, &x, &dx, &y}, p.cols), [&]<Mode M>() {
    if (call.inCount < 4) {
      auto blocks = static_cast<unsigned>(ceilDiv(p.rows, kWeightedRows));
      return launchKernel(weightedBackward<M, Unit>, blocks, kThreads, 0, queueOf(call), p);
    }
    Counts counts = countsOf(call.in[3], p.rows);
    launchKernel(countedBackward<M, Unit>, gridOfSlots(counts, kWeightedRows), kThreads, 0,
                 queueOf(call), p, counts);
  });
}

} // namespace

SHARDC_KERNEL(Gelu, acceptsAs, runGelu);
SHARDC_KERNEL(GeluBwd, acceptsAs, runGeluBwd);
SHARDC_KERNEL(SquaredRelu, acceptsAs, runSquaredRelu);
SHARDC_KERNEL(SquaredReluBwd, acceptsAs, runSquaredReluBwd);
SHARDC_KERNEL(SwiGlu, acceptsAs, runGated<SwiGlu>);
SHARDC_KERNEL(SwiGluBwd, acceptsAs, runGatedBwd<SwiGlu>);
SHARDC_KERNEL(WeightedSwiGlu, acceptsAs, runWeighted<SwiGlu>);
SHARDC_KERNEL(WeightedSwiGluBwd, acceptsAs, runWeightedBwd<SwiGlu>);
SHARDC_KERNEL(GeGlu, acceptsAs, runGated<GeGlu>);
SHARDC_KERNEL(GeGluBwd, acceptsAs, runGatedBwd<GeGlu>);
SHARDC_KERNEL(QuickGeGlu, acceptsAs, runGated<QuickGeGlu>);
SHARDC_KERNEL(QuickGeGluBwd, acceptsAs, runGatedBwd<QuickGeGlu>);
SHARDC_KERNEL(WeightedQuickGeGlu, acceptsAs, runWeighted<QuickGeGlu>);
SHARDC_KERNEL(WeightedQuickGeGluBwd, acceptsAs, runWeightedBwd<QuickGeGlu>);

} // namespace shardc::kernels::cuda
