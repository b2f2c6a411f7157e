// amax: m = the largest magnitude in x. quantize: q = x·m in 8 bits, saturated, with m =
// limit/amax, scale = 1/m, t = qᵀ; what kernels/host/Quantize.cpp says, to the bit. x is f32, bf16
// or f16. Mapping: amax compares bits without sign, whose order is that of the numbers, over a grid
// that fills the device; maxima of blocks meet in one atomic. quantize without a transpose moves
// chunks of 8 elements. quantize_delayed is that with maxima as amax finds them: one atomic for a
// block, and none where the maximum is known already. With a transpose, blocks take tiles
// (quantize_tiles.cuh). Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_tiles.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int64_t kBlocksMax = 132 * 8;

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
  unsigned *largest = clearLargest(call, 0);
  auto blocks = static_cast<unsigned>(std::min(ceilDiv(x.numel(), 256 * kChunk), kBlocksMax));
  forMode(modeOf({&x}, 0), [&]<Mode M>() {
    launchKernel(findLargest<M>, blocks, 256, 0, queueOf(call), dataOf(x), x.numel(), largest);
  });
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

/// What is quantised as it lies in memory.
struct Stored {
  static constexpr int kParts = 1;
  Data x;
  int64_t cols;

  template <Mode M>
  __device__ __forceinline__ void load(int64_t row, int64_t c, int n,
                                       float (&v)[kParts][kChunk]) const {
    load8<M>(x, row * cols + c, n, v[0]);
  }
};

void quantizeTiles(const Call &call, const Target &to) {
  const Tensor &x = call.in[0];
  launchTiles(call, modeOf({&x, &call.out[0]}, x.cols()), Stored{dataOf(x), x.cols()}, {{{to}}},
              x.rows(), x.cols());
}

void runQuantize(const Call &call) {
  const Tensor &x = call.in[0];
  Target to = targetOf(call, 1, 2);
  if (to.t)
    return quantizeTiles(call, to);
  launchFlat(call, modeOf({&x, &call.out[0]}, 0), QuantizeOp{dataOf(x), to}, x.numel());
}

void runQuantizeDelayed(const Call &call) {
  const Tensor &x = call.in[0];
  Target to = targetOfDelayed(call, 1, 3);
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
