// amax: m = the amax of x. quantize: q = x·m in 8 bits, saturated, with m = limit/amax, scale =
// 1/m, t = qᵀ. Bitwise equal to kernels/host/Quantize.cpp. x is f32, bf16 or f16. Mapping: amax
// compares bits without the sign, which have the order of absolute values, on a grid that fills the
// device; atomics combine the blocks' maxima. Without a transposed copy, quantize processes chunks
// of 8 elements. quantize_delayed also records the amax: one atomic per block, or none if a larger
// amax is already stored. With a transposed copy, blocks process tiles (quantize_tiles.cuh).
// Limited by memory.
#include <span>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_sources.cuh"
#include "kernels/cuda/quantize_tiles.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::cuda {
namespace {

int64_t blocksMax(const Call &call) { return int64_t{multiprocessorsOf(call)} * 8; }

/// Calls use(first element, count up to 8) for this thread's chunks of [begin, end), which the
/// blocks of a grid row divide among themselves.
template <typename Use>
__device__ __forceinline__ void forChunks(int64_t begin, int64_t end, const Use &use) {
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kChunk;
  for (int64_t i = begin + (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
       i < end; i += step)
    use(i, upToChunk(end - i));
}

template <Mode M>
__device__ __forceinline__ unsigned largestOfRun(const Data &x, int64_t begin, int64_t end) {
  unsigned most = 0;
  float v[kChunk];
  forChunks(begin, end, [&](int64_t i, int n) {
    load8<M>(x, i, n, v);
    most = largestOf(most, v);
  });
  return most;
}

template <Mode M>
__global__ void __launch_bounds__(256) findLargest(const Data x, int64_t numel, unsigned *largest) {
  awaitPrevious();
  joinLargest(largestOfRun<M>(x, 0, numel), largest);
}

void runAmax(const Call &call) {
  const Tensor &x = call.in[0];
  unsigned *largest = clearLargest(call, 0);
  auto blocks = static_cast<unsigned>(std::min(ceilDiv(x.numel(), 256 * kChunk), blocksMax(call)));
  forMode(modeOf({&x}, 0), [&]<Mode M>() {
    launchKernel(findLargest<M>, blocks, 256, 0, queueOf(call), dataOf(x), x.numel(), largest);
  });
}

/// q = x · multiplier in 8 bits; the scale is the multiplier's reciprocal.
struct QuantizeOp {
  Data x;
  Target to;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk], multiplier = multiplierOf(*to.amax, to.isE5M2);
    load8<M>(x, i, n, v);
    storeRow<M>(to.q, i, n, convert(to.isE5M2, multiplier, v));
    if (i == 0)
      *to.scale = reciprocal(multiplier);
  }
};

/// Quantises and records the amax. A thread loads all of an iteration's chunks at once.
template <Mode M>
__global__ void __launch_bounds__(256) quantizeSeen(const Data x, const Target to, int64_t numel) {
  awaitPrevious();
  constexpr int kTogether = 4;
  float multiplier = multiplierOf(*to.amax, to.isE5M2);
  Amax<M> most;
  int64_t apart = static_cast<int64_t>(gridDim.x) * blockDim.x * kChunk;
  auto countAt = [&](int64_t i) {
    return static_cast<int>(numel - i < 0 ? 0 : numel - i < kChunk ? numel - i : kChunk);
  };
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChunk;
       i < numel; i += kTogether * apart) {
    Chunk<M> read[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      read[k] = readChunk<M>(x, i + k * apart, countAt(i + k * apart));
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (int n = countAt(i + k * apart))
        storeRow<M>(to.q, i + k * apart, n, codesOf<M>(to, multiplier, read[k], most));
  }
  joinLargest(most.bits(), to.seen);
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *to.scale = reciprocal(multiplier);
}

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
  forMode(modeOf({&x, &call.out[0]}, 0), [&]<Mode M>() {
    unsigned blocks = persistentGrid(quantizeSeen<M>, 256, 0, ceilDiv(x.numel(), 256 * kChunk));
    launchKernel(quantizeSeen<M>, blocks, 256, 0, queueOf(call), dataOf(x), to, x.numel());
  });
}

/// The ranges of a shard that one launch processes, with a row of blocks per range. They share a
/// launch, because a parameter block has few ranges, and a launch costs more than a small range.
struct ShardRanges {
  static constexpr int kMax = 32;
  struct {
    int64_t begin, end, number;
  } at[kMax];
};

/// Calls launch.operator()<M>(ranges, grid) for up to kMax ranges at a time, with up to blocksMax
/// blocks per range. M moves whole chunks if all ranges begin at a whole chunk.
template <typename Launch>
void forRanges(const Call &call, std::initializer_list<const Tensor *> shards, int64_t blocksMax,
               const Launch &launch) {
  std::span<const ParamRange> all = host::rangesOfShard(call, 0);
  Mode mode = modeOf(shards, 0);
  for (const ParamRange &range : all)
    mode = range.begin % kChunk == 0 ? mode : Mode::Scalar;
  for (size_t first = 0; first < all.size(); first += ShardRanges::kMax) {
    size_t count = std::min<size_t>(ShardRanges::kMax, all.size() - first);
    ShardRanges ranges = {};
    int64_t longest = 1;
    for (size_t i = 0; i < count; ++i) {
      const ParamRange &range = all[first + i];
      ranges.at[i] = {range.begin, range.end, range.number};
      longest = std::max(longest, range.end - range.begin);
    }
    dim3 grid(static_cast<unsigned>(std::min(ceilDiv(longest, 256 * kChunk), blocksMax)),
              static_cast<unsigned>(count));
    if (mode == Mode::Scalar)
      launch.template operator()<Mode::Scalar>(ranges, grid);
    else
      launch.template operator()<Mode::Mixed>(ranges, grid);
  }
}

template <Mode M>
__global__ void __launch_bounds__(256)
    findLargestOfRanges(const Data x, const ShardRanges ranges, unsigned *largest) {
  awaitPrevious();
  auto [begin, end, number] = ranges.at[blockIdx.y];
  joinLargest(largestOfRun<M>(x, begin, end), largest + number);
}

void runAmaxShard(const Call &call) {
  const Tensor &x = call.in[0];
  auto *amax = static_cast<unsigned *>(call.out[0].data);
  forRanges(call, {&x}, blocksMax(call), [&]<Mode M>(const ShardRanges &ranges, dim3 grid) {
    launchKernel(findLargestOfRanges<M>, grid, 256, 0, queueOf(call), dataOf(x), ranges, amax);
  });
}

template <Mode M>
__global__ void __launch_bounds__(256)
    quantizeRanges(const Data x, uint8_t *q, const ShardRanges ranges, const float *amax) {
  awaitPrevious();
  auto [begin, end, number] = ranges.at[blockIdx.y];
  float v[kChunk], multiplier = multiplierOf(amax[number], false);
  forChunks(begin, end, [&](int64_t i, int n) {
    load8<M>(x, i, n, v);
    storeRow<M>(q, i, n, convert(false, multiplier, v));
  });
}

void runQuantizeShard(const Call &call) {
  const Tensor &x = call.in[0], &q = call.out[0];
  forRanges(call, {&x, &q}, INT32_MAX, [&]<Mode M>(const ShardRanges &ranges, dim3 grid) {
    launchKernel(quantizeRanges<M>, grid, 256, 0, queueOf(call), dataOf(x),
                 static_cast<uint8_t *>(q.data), ranges,
                 static_cast<const float *>(call.in[1].data));
  });
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

/// The amax history, recorded amaxes and expected amaxes of n tensors.
struct History {
  float *rows, *seen, *amax;
  int64_t len, n;
  int64_t interval;
  int margin;
  bool mostRecent;
};

/// A thread block processes kHistoryCols columns; threadIdx.y is the lane, which processes
/// kHistoryRowsEach rows per iteration.
constexpr int kHistoryCols = kWarp, kHistoryLanes = 32, kHistoryRowsEach = 8;

/// Shifts a column of the history by one row, appends the recorded amax `seen`, and returns the
/// maximum of the shifted rows. All lanes of a block call it.
__device__ unsigned moveRows(const History &history, float *column, float seen, bool isThere) {
  unsigned most = 0;
  int64_t first = 1 + static_cast<int64_t>(threadIdx.y) * kHistoryRowsEach;
  for (int64_t turn = 1; turn < history.len;
       turn += kHistoryLanes * kHistoryRowsEach, first += kHistoryLanes * kHistoryRowsEach) {
    float rows[kHistoryRowsEach + 1]; ///< rows of this lane, and the row after them
#pragma unroll
    for (int k = 0; k <= kHistoryRowsEach; ++k)
      rows[k] = isThere && first + k < history.len ? column[(first + k) * history.n] : seen;
    __syncthreads(); // another lane will overwrite the row after them
#pragma unroll
    for (int k = 0; k < kHistoryRowsEach; ++k)
      if (isThere && first + k < history.len) {
        most = max(most, __float_as_uint(rows[k]));
        column[(first + k) * history.n] = rows[k + 1];
      }
  }
  return most;
}

__global__ void __launch_bounds__(kHistoryCols *kHistoryLanes)
    updateHistory(const __grid_constant__ History history, const StepState *state) {
  awaitPrevious();
  __shared__ unsigned largest[kHistoryLanes][kHistoryCols];
  int64_t i = static_cast<int64_t>(blockIdx.x) * kHistoryCols + threadIdx.x;
  bool isThere = i < history.n;
  float seen = isThere ? history.seen[i] : 0.0f;
  float *column = history.rows + i;
  if (!state->nonfinite) {
    largest[threadIdx.y][threadIdx.x] = moveRows(history, column, seen, isThere);
    __syncthreads();
  }
  if (!isThere || threadIdx.y != 0)
    return;
  if (!state->nonfinite) {
    unsigned most = __float_as_uint(seen);
    for (int lane = 0; lane < kHistoryLanes && !history.mostRecent; ++lane)
      most = max(most, largest[lane][threadIdx.x]);
    float amax = __uint_as_float(most), expected = ldexpf(amax, history.margin);
    if (state->step % history.interval == 0 && amax > 0 && isfinite(expected))
      column[0] = expected;
  }
  history.seen[i] = 0;
  history.amax[i] = column[0];
}

void runAmaxUpdate(const Call &call) {
  const Tensor &rows = call.out[0];
  History history = {static_cast<float *>(rows.data),
                     static_cast<float *>(call.out[1].data),
                     static_cast<float *>(call.out[2].data),
                     rows.rows(),
                     rows.cols(),
                     call.attrs.interval,
                     static_cast<int>(call.attrs.margin),
                     call.attrs.most_recent};
  auto blocks = static_cast<unsigned>(ceilDiv(rows.cols(), kHistoryCols));
  launchKernel(updateHistory, blocks, dim3(kHistoryCols, kHistoryLanes), 0, queueOf(call), history,
               static_cast<const StepState *>(call.in[2].data));
}

} // namespace

SHARDC_KERNEL(Amax, acceptsAs, runAmax);
SHARDC_KERNEL(Quantize, acceptsTiles, runQuantize);
SHARDC_KERNEL(QuantizeDelayed, acceptsTiles, runQuantizeDelayed);
SHARDC_KERNEL(AmaxShard, acceptsAs, runAmaxShard);
SHARDC_KERNEL(QuantizeShard, acceptsAs, runQuantizeShard);
SHARDC_KERNEL(WeightScales, acceptsAs, runWeightScales);
SHARDC_KERNEL(AmaxUpdate, acceptsAs, runAmaxUpdate);

} // namespace shardc::kernels::cuda
