// amax: m = the largest magnitude in x. quantize: q = x·m in 8 bits, saturated, with m =
// limit/amax, scale = 1/m, t = qᵀ; what kernels/host/Quantize.cpp says, to the bit. x is f32, bf16
// or f16. Mapping: amax compares bits without sign, whose order is that of the numbers, over a grid
// that fills the device; maxima of blocks meet in one atomic. quantize without a transpose moves
// chunks of 8 elements. quantize_delayed is that with maxima as amax finds them: one atomic for a
// block, and none where the maximum is known already. With a transpose, a block takes a tile of 128
// rows by 64 columns: a thread converts 4 rows of 8 columns, and the tile is turned in shared
// memory as words of 4 rows, so that rows of t are written 128 bytes at a time. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int64_t kBlocksMax = 132 * 8;

/// All 256 threads of a block take part.
__device__ __forceinline__ void joinLargest(unsigned most, unsigned *largest) {
  most = __reduce_max_sync(0xffffffffu, most);
  __shared__ unsigned parts[256 / kWarp];
  if (threadIdx.x % kWarp == 0)
    parts[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    most = __reduce_max_sync(0xffffffffu, threadIdx.x < 256 / kWarp ? parts[threadIdx.x] : 0u);
    most = most > 0x7f800000u ? kNan : most; // one NaN for all
    if (threadIdx.x == 0 && most > *static_cast<volatile unsigned *>(largest))
      atomicMax(largest, most);
  }
}

__device__ __forceinline__ unsigned largestOf(unsigned most, const float (&v)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    most = max(most, __float_as_uint(v[j]) & 0x7fffffffu);
  return most;
}

template <Mode M>
__global__ void __launch_bounds__(256) findLargest(const Data x, int64_t numel, unsigned *largest) {
  awaitPrevious();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kChunk;
  unsigned most = 0;
  float v[kChunk];
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
       i < numel; i += step) {
    load8<M>(x, i, static_cast<int>(numel - i < kChunk ? numel - i : kChunk), v);
    most = largestOf(most, v);
  }
  joinLargest(most, largest);
}

void runAmax(const Call &call) {
  const Tensor &x = call.in[0];
  Queue &queue = queueOf(call);
  auto *largest = static_cast<unsigned *>(call.out[0].data);
  static_cast<void>(cudaMemsetAsync(largest, 0, sizeof *largest, queue));
  queue.noteOther();
  auto blocks = static_cast<unsigned>(std::min(ceilDiv(x.numel(), 256 * kChunk), kBlocksMax));
  forMode(modeOf({&x}, 0), [&]<Mode M>() {
    launchKernel(findLargest<M>, blocks, 256, 0, queue, dataOf(x), x.numel(), largest);
  });
}

/// Numbers of 8 bits, and what they are made with.
struct Target {
  uint8_t *q; ///< null: only the transpose is written
  uint8_t *t; ///< null: there is none
  float *scale;
  const float *amax;
  unsigned *seen; ///< null: the largest magnitude is not looked for
  bool isE5M2;
};

/// What is not finite, and would become the largest number otherwise.
__device__ __forceinline__ void markLost(float (&v)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    v[j] = isfinite(v[j]) ? v[j] : __uint_as_float(kNan);
}

struct QuantizeOp {
  Data x;
  Target to;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk], multiplier = multiplierOf(*to.amax, to.isE5M2);
    load8<M>(x, i, n, v);
    storeRow<M>(to.q, i, n, convert(to.isE5M2, multiplier, v));
    if (i == 0 && to.scale)
      *to.scale = reciprocal(multiplier);
  }
};

template <Mode M>
__global__ void __launch_bounds__(256) quantizeSeen(const Data x, const Target to, int64_t numel) {
  awaitPrevious();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kChunk;
  float v[kChunk], multiplier = multiplierOf(*to.amax, to.isE5M2);
  unsigned most = 0;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
       i < numel; i += step) {
    int n = static_cast<int>(numel - i < kChunk ? numel - i : kChunk);
    load8<M>(x, i, n, v);
    most = largestOf(most, v);
    markLost(v);
    storeRow<M>(to.q, i, n, convert(to.isE5M2, multiplier, v));
  }
  joinLargest(most, to.seen);
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *to.scale = reciprocal(multiplier);
}

template <Mode M>
__global__ void __launch_bounds__(256)
    quantizeTile(const Data x, const Target to, int64_t rows, int64_t cols) {
  awaitPrevious();
  __shared__ TurnedTile tile;
  float multiplier = multiplierOf(*to.amax, to.isE5M2);
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int chunk = static_cast<int>(threadIdx.x) % (kTileCols / kChunk);
  int64_t firstRow = static_cast<int64_t>(blockIdx.y) * kTileRows;
  int64_t firstCol = static_cast<int64_t>(blockIdx.x) * kTileCols;
  int64_t col = firstCol + chunk * kChunk;
  int n = static_cast<int>(cols - col < kChunk ? cols - col : kChunk);
  uint2 codes[kRowsEach] = {};
  unsigned most = 0;
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    int64_t row = firstRow + group * kRowsEach + r;
    if (row < rows && n > 0) {
      float v[kChunk];
      load8<M>(x, row * cols + col, n, v);
      if (to.seen) {
        most = largestOf(most, v);
        markLost(v);
      }
      codes[r] = convert(to.isE5M2, multiplier, v);
      if (to.q)
        storeRow<M>(to.q, row * cols + col, n, codes[r]);
    }
  }
  tile.put(group, chunk, codes);
  __syncthreads();
  tile.store(to.t, rows, cols, firstRow, firstCol);
  if (to.seen)
    joinLargest(most, to.seen);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    *to.scale = reciprocal(multiplier);
}

/// With the transposed copy as result `copy`, if there is one.
Target targetOf(const Call &call, int copy) {
  auto *first = static_cast<uint8_t *>(call.out[0].data);
  bool transposed = call.attrs.transposed;
  Target to = {};
  to.q = transposed ? nullptr : first;
  to.t = transposed             ? first
         : call.outCount > copy ? static_cast<uint8_t *>(call.out[copy].data)
                                : nullptr;
  to.scale = static_cast<float *>(call.out[1].data);
  to.amax = static_cast<const float *>(call.in[1].data) + call.attrs.slot;
  to.isE5M2 = call.out[0].dtype == DType::F8E5M2;
  return to;
}

void quantizeTiles(const Call &call, const Target &to) {
  const Tensor &x = call.in[0];
  int64_t rows = x.rows(), cols = x.cols();
  forMode(modeOf({&x, &call.out[0]}, cols), [&]<Mode M>() {
    launchKernel(quantizeTile<M>, gridOfTiles(rows, cols), 256, 0, queueOf(call), dataOf(x), to,
                 rows, cols);
  });
}

void runQuantize(const Call &call) {
  const Tensor &x = call.in[0];
  Target to = targetOf(call, 2);
  if (to.t)
    return quantizeTiles(call, to);
  launchFlat(call, modeOf({&x, &call.out[0]}, 0), QuantizeOp{dataOf(x), to}, x.numel());
}

void runQuantizeDelayed(const Call &call) {
  const Tensor &x = call.in[0];
  Target to = targetOf(call, 3);
  to.seen = static_cast<unsigned *>(call.out[2].data) + call.attrs.slot;
  if (to.t)
    return quantizeTiles(call, to);
  auto blocks = static_cast<unsigned>(std::min(ceilDiv(x.numel(), 256 * kChunk), kBlocksMax));
  forMode(modeOf({&x, &call.out[0]}, 0), [&]<Mode M>() {
    launchKernel(quantizeSeen<M>, blocks, 256, 0, queueOf(call), dataOf(x), to, x.numel());
  });
}

/// A part of a shard, of which kernels of whole chunks take what begins at one.
Tensor partOf(const Tensor &shard, const ParamRange &range) {
  Tensor part = shard;
  part.data = static_cast<std::byte *>(shard.data) + range.begin * dtypeBytes(shard.dtype);
  part.rank = 1;
  part.shape[0] = range.end - range.begin;
  return part;
}

void runAmaxShard(const Call &call) {
  auto *amax = static_cast<unsigned *>(call.out[0].data);
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    Tensor x = partOf(call.in[0], range);
    auto blocks = static_cast<unsigned>(std::min(ceilDiv(x.numel(), 256 * kChunk), kBlocksMax));
    forMode(modeOf({&x}, 0), [&]<Mode M>() {
      launchKernel(findLargest<M>, blocks, 256, 0, queueOf(call), dataOf(x), x.numel(),
                   amax + range.number);
    });
  }
}

void runQuantizeShard(const Call &call) {
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    Tensor x = partOf(call.in[0], range), q = partOf(call.out[0], range);
    Target to = {};
    to.q = static_cast<uint8_t *>(q.data);
    to.amax = static_cast<const float *>(call.in[1].data) + range.number;
    launchFlat(call, modeOf({&x, &q}, 0), QuantizeOp{dataOf(x), to}, x.numel());
  }
}

__global__ void makeScales(const float *amax, float *scales, int64_t n) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n)
    scales[i] = reciprocal(multiplierOf(amax[i / 4], false));
}

void runWeightScales(const Call &call) {
  int64_t n = call.out[0].numel();
  launchKernel(makeScales, static_cast<unsigned>(ceilDiv(n, 256)), 256, 0, queueOf(call),
               static_cast<const float *>(call.in[0].data), static_cast<float *>(call.out[0].data),
               n);
}

/// A history, what is seen and what is expected of n tensors.
struct History {
  float *rows, *seen, *amax;
  int64_t len, n;
  int64_t interval;
  int margin;
  bool mostRecent;
};

__device__ void updateColumn(const History &history, int64_t i, int64_t step) {
  float *column = history.rows + i;
  unsigned most = __float_as_uint(history.seen[i]);
  for (int64_t row = 1; row < history.len; ++row) {
    if (!history.mostRecent)
      most = max(most, __float_as_uint(column[row * history.n]));
    column[row * history.n] =
        row + 1 < history.len ? column[(row + 1) * history.n] : history.seen[i];
  }
  float amax = __uint_as_float(most), expected = ldexpf(amax, history.margin);
  if (step % history.interval == 0 && amax > 0 && isfinite(expected))
    column[0] = expected;
}

__global__ void updateHistory(const History history, const StepState *state) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= history.n)
    return;
  if (!state->nonfinite)
    updateColumn(history, i, state->step);
  history.seen[i] = 0;
  history.amax[i] = history.rows[i];
}

void runAmaxUpdate(const Call &call) {
  constexpr unsigned kThreads = 64; // a few tensors, each with a long column
  const Tensor &rows = call.out[0];
  History history = {static_cast<float *>(rows.data),
                     static_cast<float *>(call.out[1].data),
                     static_cast<float *>(call.out[2].data),
                     rows.rows(),
                     rows.cols(),
                     call.attrs.interval,
                     static_cast<int>(call.attrs.margin),
                     call.attrs.most_recent};
  auto blocks = static_cast<unsigned>(ceilDiv(rows.cols(), kThreads));
  launchKernel(updateHistory, blocks, kThreads, 0, queueOf(call), history,
               static_cast<const StepState *>(call.in[2].data));
}

} // namespace

const Kernel kAmax = {"amax_cuda", runAmax, acceptsAs<&host::kAmax>};
const Kernel kQuantize = {"quantize_cuda", runQuantize, acceptsTiles<&host::kQuantize>};
const Kernel kQuantizeDelayed = {"quantize_delayed_cuda", runQuantizeDelayed,
                                 acceptsTiles<&host::kQuantizeDelayed>};
const Kernel kAmaxShard = {"amax_shard_cuda", runAmaxShard, acceptsAs<&host::kAmaxShard>};
const Kernel kQuantizeShard = {"quantize_shard_cuda", runQuantizeShard,
                               acceptsAs<&host::kQuantizeShard>};
const Kernel kWeightScales = {"weight_scales_cuda", runWeightScales,
                              acceptsAs<&host::kWeightScales>};
const Kernel kAmaxUpdate = {"amax_update_cuda", runAmaxUpdate, acceptsAs<&host::kAmaxUpdate>};

} // namespace shardc::kernels::cuda
