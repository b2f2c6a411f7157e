// split_qkv_norm_rope and merge_qkv_norm_rope: like qkv.cu, but with rmsnorm of each head of q and
// k before its rotation (runtime/plan/Ops.def). Sums are fp32. Mapping: if rows consist of
// whole 16-bit chunks, a thread has a chunk and the chunk half a head later, as in qkv.cu, and
// adjacent threads have a head. Blocks process groups of rows in a loop; a thread computes its
// place in them once. For the gradient of a weight, a thread keeps its columns' sums over all of
// its rows, and a second kernel adds the blocks' partial sums in order. For other rows, a warp
// holds a head in shared memory. Limited by memory: each element is read once and written once.
#include <bit>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/qkv.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSplitBlocks = 4, kMergeBlocks = 2; ///< blocks per multiprocessor
constexpr int kGroupMax = 8;                      ///< rows per group
constexpr int64_t kChunkChannelsMax = 256;        ///< channels per head
constexpr int kHeadWarps = 4; ///< warps per block for other rows; each has a head

struct Norms {
  Data weights[2]; ///< norm weights of q and of k
  float *rstd[2];
  Data rows; ///< the rows that were normalised (backward only)
  float *partials;
  int64_t count; ///< number of rows
  float plus, eps;
  int perGroup;

  __host__ __device__ int64_t groups() const { return (count + perGroup - 1) / perGroup; }
};

/// Which of q, k and v a head belongs to.
enum Part : int { kOfQ, kOfK, kOfV };

__device__ __forceinline__ Part partOf(const Qkv &p, const HeadLocation &location) {
  return location.part == &p.q ? kOfQ : location.part == &p.k ? kOfK : kOfV;
}

// ---- rows of whole 16-bit chunks, with heads that are rotated completely ----

/// A thread's place in each group of rows.
struct Place {
  Pair pair;
  Part part;
  int channel;                      ///< first channel of the chunk in its head
  int64_t statistic, statisticStep; ///< index of the head's rstd, and step to the next group

  __device__ Place(const Qkv &p, const Norms &n) {
    int item = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
    int mates = p.channels / (2 * kChunk), perRow = p.perRow * mates;
    HeadLocation location = locationOf(p, item / perRow, item % perRow / mates);
    pair = pairAt(p, item, n.perGroup);
    part = partOf(p, location);
    channel = item % mates * kChunk;
    statistic = location.offset / p.channels;
    statisticStep = int64_t{n.perGroup} * p.groups * (part == kOfQ ? p.queries : 1);
  }

  __device__ bool isThere(int64_t group, const Norms &n) const {
    return pair.to != nullptr && group * n.perGroup + pair.row < n.count;
  }
};

/// Tables in shared memory: the angles of two groups of rows, the frequencies, and both weights.
struct Tables {
  float2 *angles;
  float *frequencies, *weights;
  int perGroup; ///< angles per group

  __device__ Tables(const Qkv &p, const Norms &n, float2 *memory)
      : angles(memory),
        frequencies(reinterpret_cast<float *>(memory + 2 * n.perGroup * p.rotation.pairs)),
        weights(frequencies + p.rotation.pairs), perGroup(n.perGroup * p.rotation.pairs) {
    for (int i = static_cast<int>(threadIdx.x); i < p.rotation.pairs; i += kThreads)
      frequencies[i] = frequencyOf(p.rotation, i);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * p.channels; i += kThreads)
      weights[i] = element(n.weights[i / p.channels], i % p.channels) + n.plus;
    __syncthreads();
  }

  static size_t bytes(const Qkv &p, const Norms &n) {
    size_t floats =
        static_cast<size_t>(p.rotation.pairs) * (4 * static_cast<size_t>(n.perGroup) + 1);
    return (floats + 2 * static_cast<size_t>(p.channels)) * sizeof(float);
  }

  __device__ float2 *of(int64_t number) const { return angles + number % 2 * perGroup; }
  /// The norm's weights for the place's chunk. Those of the other chunk are half a head further.
  __device__ const float *weightsOf(const Qkv &p, const Place &place) const {
    return weights + (place.part == kOfK ? p.channels : 0) + place.channel;
  }

  __device__ void inRing(const Qkv &p, const Norms &n, int64_t group, int64_t number) const {
    anglesOfGroup<kThreads>(p, group, n.perGroup, n.count, frequencies, of(number));
  }
};

__device__ __forceinline__ void readWeights(const float *from, float (&w)[kChunk]) {
  const float4 *parts = reinterpret_cast<const float4 *>(from);
  float4 a = parts[0], b = parts[1];
  w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
}

template <Mode M>
__global__ void __launch_bounds__(kThreads, kSplitBlocks)
    splitNormPairs(const __grid_constant__ Qkv p, const __grid_constant__ Norms n) {
  awaitPrevious();
  extern __shared__ float2 memory[];
  Tables tables(p, n, memory);
  Place place(p, n);
  int half = p.channels / (2 * kChunk);
  const float *weights = tables.weightsOf(p, place);
  uint4 nextLow = {}, nextHigh = {};
  auto read = [&](int64_t group) {
    if (!place.isThere(group, n))
      return;
    const uint4 *from = place.pair.from + group * place.pair.fromStep;
    nextLow = from[0], nextHigh = from[half];
  };
  read(blockIdx.x);
  tables.inRing(p, n, blockIdx.x, 0);
  for (int64_t group = blockIdx.x, number = 0; group < n.groups(); group += gridDim.x, ++number) {
    uint4 low = nextLow, high = nextHigh;
    __syncthreads(); // this group's angles are ready; the previous group's are free
    read(group + gridDim.x);
    tables.inRing(p, n, group + gridDim.x, number + 1);
    float a[kChunk], b[kChunk], w[kChunk], square[1] = {};
    unpack<M>(p.whole, low, a);
    unpack<M>(p.whole, high, b);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      square[0] += a[j] * a[j] + b[j] * b[j];
    laneSums(square, half); // all threads take part, with or without a head
    if (!place.isThere(group, n))
      continue;
    if (place.part != kOfV) {
      float rstd = 1.0f / sqrtf(square[0] / static_cast<float>(p.channels) + n.eps);
      if (place.channel == 0)
        n.rstd[place.part][place.statistic + group * place.statisticStep] = rstd;
      readWeights(weights, w);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        a[j] = a[j] * rstd * w[j];
      readWeights(weights + p.channels / 2, w);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        b[j] = b[j] * rstd * w[j];
      round8<M>(p.whole, a);
      round8<M>(p.whole, b);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        rotate(tables.of(number)[place.pair.angle + j], a[j], b[j]);
      low = pack<M>(p.whole, a);
      high = pack<M>(p.whole, b);
    }
    uint4 *to = place.pair.to + group * place.pair.toStep;
    to[0] = low, to[half] = high;
  }
}

/// Adds the block's sums for each column of a weight, in the order of threads.
__device__ __forceinline__ void writeSums(const Qkv &p, const Norms &n, Part part,
                                          const float (&low)[kChunk], const float (&high)[kChunk]) {
  __shared__ float sums[kThreads][2 * kChunk];
  __shared__ int parts[kThreads];
  int thread = static_cast<int>(threadIdx.x), half = p.channels / (2 * kChunk);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    sums[thread][j] = low[j], sums[thread][kChunk + j] = high[j];
  parts[thread] = part;
  __syncthreads();
  int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  for (int i = thread; i < 2 * p.channels; i += kThreads) {
    int channel = i % p.channels, inHalf = channel % (p.channels / 2);
    int j = inHalf % kChunk + (channel < p.channels / 2 ? 0 : kChunk);
    float total = 0;
    for (int from = inHalf / kChunk; from < kThreads; from += half)
      total += parts[from] == i / p.channels ? sums[from][j] : 0.0f;
    n.partials[block * 2 * p.channels + i] = total;
  }
}

/// Adds dy·h to a weight's gradient, and replaces dy by g = dy·w. Returns the sum of g·h.
template <Mode M>
__device__ __forceinline__ float weigh(const Qkv &p, uint4 row, float rstd, const float *weights,
                                       float (&dy)[kChunk], float (&sum)[kChunk]) {
  float x[kChunk], w[kChunk], product = 0;
  unpack<M>(p.whole, row, x);
  readWeights(weights, w);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    x[j] *= rstd;
    sum[j] += dy[j] * x[j];
    dy[j] *= w[j];
    product += dy[j] * x[j];
  }
  return product;
}

/// The gradient of the norm's input. The normalised chunk is computed again from `row`, because
/// there are not enough registers to keep it.
template <Mode M>
__device__ __forceinline__ uint4 inputGradient(const Qkv &p, uint4 row, float rstd, float mean,
                                               const float (&g)[kChunk]) {
  float x[kChunk], v[kChunk];
  unpack<M>(p.whole, row, x);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    v[j] = rstd * (g[j] - x[j] * rstd * mean);
  return pack<M>(p.whole, v);
}

template <Mode M>
__global__ void __launch_bounds__(kThreads, kMergeBlocks)
    mergeNormPairs(const __grid_constant__ Qkv p, const __grid_constant__ Norms n) {
  awaitPrevious();
  extern __shared__ float2 memory[];
  Tables tables(p, n, memory);
  Place place(p, n);
  int half = p.channels / (2 * kChunk);
  const float *weights = tables.weightsOf(p, place);
  const uint4 *rows = nullptr; // this thread's rows in the first group
  if (place.pair.to != nullptr)
    rows = chunkOf(n.rows, 0) + (place.pair.to - chunkOf(p.whole, 0));
  float sumLow[kChunk] = {}, sumHigh[kChunk] = {};
  tables.inRing(p, n, blockIdx.x, 0);
  for (int64_t group = blockIdx.x, number = 0; group < n.groups(); group += gridDim.x, ++number) {
    bool isThere = place.isThere(group, n), isNormed = isThere && place.part != kOfV;
    uint4 low = {}, high = {}, rowLow = {}, rowHigh = {};
    float rstd = 0;
    if (isThere) {
      const uint4 *from = place.pair.from + group * place.pair.fromStep;
      low = from[0], high = from[half];
    }
    if (isNormed) {
      const uint4 *row = rows + group * place.pair.toStep;
      rowLow = row[0], rowHigh = row[half];
      rstd = n.rstd[place.part][place.statistic + group * place.statisticStep];
    }
    __syncthreads(); // this group's angles are ready; the previous group's are free
    tables.inRing(p, n, group + gridDim.x, number + 1);
    float a[kChunk], b[kChunk], product[1] = {};
    if (isNormed) {
      unpack<M>(p.whole, low, a);
      unpack<M>(p.whole, high, b);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        rotate(tables.of(number)[place.pair.angle + j], a[j], b[j]);
      round8<M>(p.whole, a);
      round8<M>(p.whole, b);
      product[0] = weigh<M>(p, rowLow, rstd, weights, a, sumLow);
      product[0] += weigh<M>(p, rowHigh, rstd, weights + p.channels / 2, b, sumHigh);
    }
    laneSums(product, half);
    product[0] /= static_cast<float>(p.channels);
    if (!isThere)
      continue;
    if (isNormed)
      low = inputGradient<M>(p, rowLow, rstd, product[0], a),
      high = inputGradient<M>(p, rowHigh, rstd, product[0], b);
    uint4 *to = place.pair.to + group * place.pair.toStep;
    to[0] = low, to[half] = high;
  }
  writeSums(p, n, place.part, sumLow, sumHigh);
}

/// Number of rows per group for which the group's chunks fill blocks best.
int rowsOfGroup(const Qkv &p) {
  int perRow = std::max(p.perRow * (p.channels / (2 * kChunk)), 1), best = 1;
  auto filled = [&](int rows) {
    int64_t chunks = int64_t{rows} * perRow;
    return static_cast<double>(chunks) / static_cast<double>(ceilDiv(chunks, kThreads) * kThreads);
  };
  for (int rows = 2; rows <= kGroupMax; ++rows)
    if (filled(rows) > filled(best) + 0.01)
      best = rows;
  return best;
}

/// The grid: y has the blocks of one group, x the groups that are processed at a time.
dim3 gridOf(const Call &call, const Qkv &p, const Norms &n, int blocksEach) {
  int64_t chunks = int64_t{n.perGroup} * p.perRow * (p.channels / (2 * kChunk));
  int64_t beside = std::max<int64_t>(ceilDiv(chunks, kThreads), 1); // heads may be short
  int64_t blocks =
      std::clamp<int64_t>(multiprocessorsOf(call) * blocksEach / beside, 1, n.groups());
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(beside)};
}

// ---- other rows ----

/// Shared memory of a warp: its head, its sums for both weights, and the block's frequencies.
struct HeadMemory {
  float *head, *row, *sums, *frequencies;

  __device__ HeadMemory(const Qkv &p, float *memory) {
    int warp = static_cast<int>(threadIdx.x) / kWarp;
    head = memory + warp * 4 * p.channels;
    row = head + p.channels, sums = row + p.channels;
    frequencies = memory + kHeadWarps * 4 * p.channels;
    for (int i = static_cast<int>(threadIdx.x); i < p.rotation.pairs; i += kHeadWarps * kWarp)
      frequencies[i] = frequencyOf(p.rotation, i);
    for (int i = lane(); i < 2 * p.channels; i += kWarp)
      sums[i] = 0;
    __syncthreads();
  }

  static size_t bytes(const Qkv &p) {
    return static_cast<size_t>(kHeadWarps * 4 * p.channels + p.rotation.pairs) * sizeof(float);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  __device__ void inRing(const Qkv &p, int64_t row) const {
    __syncwarp();
    for (int i = lane(); i < p.rotation.pairs; i += kWarp) {
      int first = p.rotation.interleaved ? 2 * i : i;
      int second = p.rotation.interleaved ? first + 1 : i + p.rotation.pairs;
      rotate(angleOf(p, row, frequencies[i]), head[first], head[second]);
    }
    __syncwarp();
  }
};

/// Calls move(head, row, offset of the head in the packed tensor) for all heads of the block's
/// warps.
template <typename Move>
__device__ __forceinline__ void forHeads(const Qkv &p, const Norms &n, const Move &move) {
  int64_t heads = n.count * p.perRow, step = int64_t{gridDim.x} * kHeadWarps;
  for (int64_t i = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / kWarp; i < heads; i += step)
    move(static_cast<int>(i % p.perRow), i / p.perRow, i * p.channels);
}

__global__ void __launch_bounds__(kHeadWarps *kWarp)
    splitNormHeads(const __grid_constant__ Qkv p, const __grid_constant__ Norms n) {
  awaitPrevious();
  extern __shared__ float floats[];
  HeadMemory memory(p, floats);
  forHeads(p, n, [&](int head, int64_t row, int64_t whole) {
    HeadLocation location = locationOf(p, row, head);
    Part part = partOf(p, location);
    float square = 0;
    for (int c = memory.lane(); c < p.channels; c += kWarp) {
      memory.head[c] = element(p.whole, whole + c);
      square += memory.head[c] * memory.head[c];
    }
    if (part != kOfV) {
      float rstd = 1.0f / sqrtf(warpSum(square) / static_cast<float>(p.channels) + n.eps);
      for (int c = memory.lane(); c < p.channels; c += kWarp)
        memory.head[c] =
            rounded(*location.part, memory.head[c] * rstd * (element(n.weights[part], c) + n.plus));
      if (memory.lane() == 0)
        n.rstd[part][location.offset / p.channels] = rstd;
      memory.inRing(p, row);
    }
    for (int c = memory.lane(); c < p.channels; c += kWarp)
      setElement(*location.part, location.offset + c, memory.head[c]);
    __syncwarp();
  });
}

__global__ void __launch_bounds__(kHeadWarps *kWarp)
    mergeNormHeads(const __grid_constant__ Qkv p, const __grid_constant__ Norms n) {
  awaitPrevious();
  extern __shared__ float floats[];
  HeadMemory memory(p, floats);
  forHeads(p, n, [&](int head, int64_t row, int64_t whole) {
    HeadLocation location = locationOf(p, row, head);
    Part part = partOf(p, location);
    for (int c = memory.lane(); c < p.channels; c += kWarp)
      memory.head[c] = element(*location.part, location.offset + c);
    if (part != kOfV) {
      memory.inRing(p, row);
      float rstd = n.rstd[part][location.offset / p.channels], product = 0;
      for (int c = memory.lane(); c < p.channels; c += kWarp) {
        float dy = rounded(p.whole, memory.head[c]), h = element(n.rows, whole + c) * rstd;
        memory.sums[part * p.channels + c] += dy * h;
        memory.row[c] = h;
        memory.head[c] = dy * (element(n.weights[part], c) + n.plus);
        product += memory.head[c] * h;
      }
      product = warpSum(product) / static_cast<float>(p.channels);
      for (int c = memory.lane(); c < p.channels; c += kWarp)
        memory.head[c] = rstd * (memory.head[c] - memory.row[c] * product);
    }
    for (int c = memory.lane(); c < p.channels; c += kWarp)
      setElement(p.whole, whole + c, memory.head[c]);
    __syncwarp();
  });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * p.channels; i += kHeadWarps * kWarp) {
    float total = 0;
    for (int warp = 0; warp < kHeadWarps; ++warp)
      total += floats[warp * 4 * p.channels + 2 * p.channels + i];
    n.partials[int64_t{blockIdx.x} * 2 * p.channels + i] = total;
  }
}

dim3 gridOfHeads(const Call &call, const Qkv &p, const Norms &n) {
  const int64_t most = int64_t{multiprocessorsOf(call)} * 4;
  return {static_cast<unsigned>(std::min(ceilDiv(n.count * p.perRow, kHeadWarps), most))};
}

// ---- on the host ----

constexpr int kForwardOperands = 3, kBackwardOperands = 8; ///< operands before the positions

/// The tensors of a call in either direction.
struct Parts {
  const Tensor &whole, *heads, *weights, *statistics;

  Parts(const Call &call, bool isBackward)
      : whole(isBackward ? call.out[0] : call.in[0]), heads(isBackward ? call.in : call.out),
        weights(call.in + (isBackward ? 4 : 1)),
        statistics(isBackward ? call.in + 6 : call.out + 3) {}

  Qkv rows(const Call &call, bool isBackward) const {
    Qkv p = partsOf(call, whole, heads[0], heads[1], heads[2], !isBackward);
    setPositions(p, call, isBackward ? kBackwardOperands : kForwardOperands);
    p.rotation = rotationOf(call.attrs, isBackward);
    return p;
  }

  Norms norms(const Call &call, const Qkv &p, bool isBackward) const {
    Norms n = {};
    for (int i = 0; i < 2; ++i) {
      n.weights[i] = dataOf(weights[i]);
      n.rstd[i] = static_cast<float *>(statistics[i].data);
    }
    n.rows = dataOf(isBackward ? call.in[3] : whole);
    n.count = heads[0].shape[0] * heads[0].shape[1];
    n.plus = call.attrs.zero_centered ? 1.0f : 0.0f;
    n.eps = static_cast<float>(call.attrs.eps);
    n.perGroup = rowsOfGroup(p);
    return n;
  }

  /// The fastest mode if heads are rotated completely and consist of whole 16-bit chunks; else
  /// Scalar.
  Mode mode(const Call &call, const Qkv &p, bool isBackward) const {
    bool isWhole = !p.rotation.interleaved && 2 * p.rotation.pairs == p.channels &&
                   p.channels % (2 * kChunk) == 0 && p.channels <= kChunkChannelsMax &&
                   std::has_single_bit(static_cast<unsigned>(p.channels));
    Mode mode = modeOf({&whole, &heads[0], &heads[1], &heads[2], isBackward ? &call.in[3] : &whole},
                       p.channels);
    return isWhole && mode != Mode::Mixed ? mode : Mode::Scalar;
  }
};

/// Buffers for the partial sums of the blocks of either mapping.
struct BwdBuffers {
  float *partials;

  BwdBuffers(const Call &call, Scratch &scratch) {
    Parts parts(call, true);
    Qkv p = parts.rows(call, true);
    Norms n = parts.norms(call, p, true);
    dim3 grid = gridOf(call, p, n, kMergeBlocks), heads = gridOfHeads(call, p, n);
    partials = scratch.take<float>(int64_t{std::max(grid.x * grid.y, heads.x)} * 2 * p.channels);
  }
};

void runSplitNorm(const Call &call) {
  Parts parts(call, false);
  Qkv p = parts.rows(call, false);
  Norms n = parts.norms(call, p, false);
  Mode mode = parts.mode(call, p, false);
  if (mode == Mode::Scalar)
    return launchKernel(splitNormHeads, gridOfHeads(call, p, n), kHeadWarps * kWarp,
                        HeadMemory::bytes(p), queueOf(call), p, n);
  launchKernel(mode == Mode::F16 ? splitNormPairs<Mode::F16> : splitNormPairs<Mode::Bf16>,
               gridOf(call, p, n, kSplitBlocks), kThreads, Tables::bytes(p, n), queueOf(call), p,
               n);
}

void runMergeNorm(const Call &call, const BwdBuffers &buffers) {
  Parts parts(call, true);
  Qkv p = parts.rows(call, true);
  Norms n = parts.norms(call, p, true);
  n.partials = buffers.partials;
  Mode mode = parts.mode(call, p, true);
  dim3 grid = mode == Mode::Scalar ? gridOfHeads(call, p, n) : gridOf(call, p, n, kMergeBlocks);
  if (mode == Mode::Scalar)
    launchKernel(mergeNormHeads, grid, kHeadWarps * kWarp, HeadMemory::bytes(p), queueOf(call), p,
                 n);
  else
    launchKernel(mode == Mode::F16 ? mergeNormPairs<Mode::F16> : mergeNormPairs<Mode::Bf16>, grid,
                 kThreads, Tables::bytes(p, n), queueOf(call), p, n);
  if (call.outCount == 1)
    return;
  ColumnTargets targets = {{dataOf(call.out[1]), dataOf(call.out[2])}};
  launchAddPartials(call, n.partials, static_cast<int>(grid.x * grid.y), 2, p.channels, targets);
}

/// Refuses heads whose elements, sums and angles do not fit into 48 KiB of shared memory.
template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (const char *reason = kOracle->accepts(call))
    return reason;
  constexpr bool kIsBackward = kOracle == &host::kMergeQkvNormRope;
  if (kIsBackward && call.outCount == 2)
    return "the gradients of both weights come together";
  return cudaRefusal(CudaLimit::NormedHeadChannels, (kIsBackward ? call.in : call.out)[0].cols());
}

} // namespace

SHARDC_KERNEL(SplitQkvNormRope, accepts, runSplitNorm);
SHARDC_KERNEL(MergeQkvNormRope, accepts, withBuffers<runMergeNorm>);

} // namespace shardc::kernels::cuda
