// split_qkv splits rows of [G, N/G + 2, D] into q[B,S,N,D] and k, v[B,S,G,D]; merge_qkv is its
// inverse. rope rotates the leading rotary_dim channels of x[B,S,heads,D] as Rotary.h defines: in
// pairs of channels (i, i + rotary_dim/2) or, if interleaved, of adjacent channels. `inverse`
// rotates backwards. In a group, rows have the queries of all members: a member reads its own, and
// writes zeros in place of the others. Data are f32, bf16 or f16 each, rounded once.
//
// Mapping: a block processes some positions. It first computes their cosines and sines into shared
// memory, once for all heads: a power in fp64 for each of rotary_dim/2 pairs, a sine in fp32 for
// each pair and position. Then its threads rotate chunks of 8 channels together with the chunks
// half a rotation away. If rows consist of whole 16-byte chunks of a 16-bit type, blocks process
// groups of positions in a loop and compute indices once. Limited by memory: each element is read
// once and written once.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/qkv.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int64_t kAnglesMax = 6144; ///< angles in 48 KiB
constexpr int kPairsMax = 1024;      ///< pairs of a head whose angles are computed in advance
constexpr int64_t kRowsPerBlock = 8; ///< rows that share the powers
constexpr int64_t kBlocksMin = 1056; ///< eight for each multiprocessor of an H200

template <Mode M> __device__ __forceinline__ void clear8(const Data &to, int64_t at, int width) {
  const float zeros[kChunk] = {};
  store8<M>(to, at, width, zeros);
}

template <Mode M>
__device__ __forceinline__ void rotateHalves(const Data &from, int64_t in, const Data &to,
                                             int64_t out, int i, const Qkv &p,
                                             const float2 *angles) {
  constexpr int kWidth = M == Mode::Scalar ? 1 : kChunk;
  float a[kChunk], b[kChunk];
  load8<M>(from, in + i, kWidth, a);
  load8<M>(from, in + i + p.rotation.pairs, kWidth, b);
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    rotate(angles[i + j], a[j], b[j]);
  store8<M>(to, out + i, kWidth, a);
  store8<M>(to, out + i + p.rotation.pairs, kWidth, b);
}

__device__ __forceinline__ void rotateNeighbours(const Data &from, int64_t in, const Data &to,
                                                 int64_t out, int i, const float2 *angles) {
  float a = element(from, in + 2 * i), b = element(from, in + 2 * i + 1);
  rotate(angles[i], a, b);
  setElement(to, out + 2 * i, a);
  setElement(to, out + 2 * i + 1, b);
}

/// Computes cosines and sines for the block's rows, row after row. The powers are the same for all
/// rows.
__device__ __forceinline__ void makeAngles(const Qkv &p, int64_t first, int rows, float2 *angles) {
  for (int i = static_cast<int>(threadIdx.x); i < p.rotation.pairs;
       i += static_cast<int>(blockDim.x)) {
    float frequency = frequencyOf(p.rotation, i);
    for (int r = 0; r < rows; ++r)
      angles[r * p.rotation.pairs + i].x = frequency;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * p.rotation.pairs;
       i += static_cast<int>(blockDim.x)) {
    angles[i] = angleOf(p, first + i / p.rotation.pairs, angles[i].x);
  }
  __syncthreads();
}

/// Moves the channels of one row to their heads, or back, and rotates those of q and k. The thread
/// with the lower half of a rotation also writes the upper half.
template <Mode M>
__device__ __forceinline__ void moveRow(const Qkv &p, int64_t row, const float2 *angles) {
  constexpr int kWidth = M == Mode::Scalar ? 1 : kChunk;
  int slots = p.channels / kWidth, rotatedSlots = 2 * p.rotation.pairs / kWidth;
  for (int at = static_cast<int>(threadIdx.x); at < p.perRow * slots;
       at += static_cast<int>(blockDim.x)) {
    int head = at / slots, slot = at % slots;
    HeadLocation location = locationOf(p, row, head);
    int64_t whole = (row * p.perRow + head) * p.channels;
    if (location.part == nullptr) {
      if (!p.split)
        clear8<M>(p.whole, whole + slot * kWidth, kWidth);
      continue;
    }
    const Data &from = p.split ? p.whole : *location.part, &to = p.split ? *location.part : p.whole;
    int64_t in = p.split ? whole : location.offset, out = p.split ? location.offset : whole;
    if (!location.rotated || slot >= rotatedSlots) {
      float x[kChunk];
      load8<M>(from, in + slot * kWidth, kWidth, x);
      store8<M>(to, out + slot * kWidth, kWidth, x);
    } else if (slot < rotatedSlots / 2) { // the upper half was rotated with the lower half
      if (M == Mode::Scalar && p.rotation.interleaved)
        rotateNeighbours(from, in, to, out, slot, angles);
      else
        rotateHalves<M>(from, in, to, out, slot * kWidth, p, angles);
    }
  }
}

// ---- rows of whole 16-bit chunks, with heads that are rotated completely or not at all ----

constexpr int kPairThreads = 256, kPairsEach = 3, kPairsOfBlock = kPairThreads * kPairsEach;

/// Blocks process groups of rows in a loop and load the next group while they rotate the current
/// one. Positions and frequencies are computed once.
template <Mode M>
__global__ void __launch_bounds__(kPairThreads)
    movePairs(const __grid_constant__ Qkv p, int64_t rows, int perGroup) {
  awaitPrevious();
  extern __shared__ float2 angles[]; // angles of two groups, and the frequencies
  int perAngles = perGroup * p.rotation.pairs, half = p.channels / (2 * kChunk);
  auto *frequencies = reinterpret_cast<float *>(angles + 2 * perAngles);
  for (int i = static_cast<int>(threadIdx.x); i < p.rotation.pairs; i += kPairThreads)
    frequencies[i] = frequencyOf(p.rotation, i);
  Pair pairs[kPairsEach];
  uint4 low[kPairsEach] = {}, high[kPairsEach] = {}, nextLow[kPairsEach] = {},
        nextHigh[kPairsEach] = {};
#pragma unroll
  for (int k = 0; k < kPairsEach; ++k)
    pairs[k] = pairAt(p,
                      static_cast<int>(blockIdx.y) * kPairsOfBlock + static_cast<int>(threadIdx.x) +
                          k * kPairThreads,
                      perGroup);
  auto read = [&](int64_t group) {
#pragma unroll
    for (int k = 0; k < kPairsEach; ++k)
      if (pairs[k].from && group * perGroup + pairs[k].row < rows) {
        const uint4 *from = pairs[k].from + group * pairs[k].fromStep;
        nextLow[k] = from[0], nextHigh[k] = from[half];
      }
  };
  auto inRing = [&](int64_t group, float2 *to) {
    anglesOfGroup<kPairThreads>(p, group, perGroup, rows, frequencies, to);
  };
  read(blockIdx.x);
  __syncthreads();
  inRing(blockIdx.x, angles);
  int64_t groups = (rows + perGroup - 1) / perGroup;
  for (int64_t group = blockIdx.x, number = 0; group < groups; group += gridDim.x, ++number) {
    const float2 *these = angles + number % 2 * perAngles;
#pragma unroll
    for (int k = 0; k < kPairsEach; ++k)
      low[k] = nextLow[k], high[k] = nextHigh[k];
    __syncthreads(); // this group's angles are ready; the previous group's are free
    read(group + gridDim.x);
    inRing(group + gridDim.x, angles + (number + 1) % 2 * perAngles);
#pragma unroll
    for (int k = 0; k < kPairsEach; ++k) {
      if (!pairs[k].to || group * perGroup + pairs[k].row >= rows)
        continue;
      if (pairs[k].isRotated) {
        float a[kChunk], b[kChunk];
        unpack<M>(p.whole, low[k], a);
        unpack<M>(p.whole, high[k], b);
#pragma unroll
        for (int j = 0; j < kChunk; ++j)
          rotate(these[pairs[k].angle + j], a[j], b[j]);
        low[k] = pack<M>(p.whole, a);
        high[k] = pack<M>(p.whole, b);
      }
      uint4 *to = pairs[k].to + group * pairs[k].toStep;
      to[0] = low[k], to[half] = high[k];
    }
  }
}

template <Mode M> void launchPairs(const Qkv &p, int64_t rows, int perGroup, Queue &queue) {
  size_t shared =
      static_cast<size_t>(p.rotation.pairs) * (2 * perGroup * sizeof(float2) + sizeof(float));
  int64_t items = static_cast<int64_t>(perGroup) * p.perRow * (p.channels / (2 * kChunk));
  auto together = static_cast<unsigned>(ceilDiv(items, kPairsOfBlock));
  unsigned blocks =
      ceilDiv(persistentGrid(movePairs<M>, kPairThreads, shared, INT32_MAX), together);
  auto groups = static_cast<unsigned>(ceilDiv(rows, perGroup));
  launchKernel(movePairs<M>, dim3(std::min(blocks, groups), together), kPairThreads, shared, queue,
               p, rows, perGroup);
}

template <Mode M>
__global__ void __launch_bounds__(256) moveHeads(const Qkv p, int64_t rows, int perBlock) {
  awaitPrevious();
  extern __shared__ float2 angles[];
  int64_t first = static_cast<int64_t>(blockIdx.x) * perBlock;
  int count = static_cast<int>(rows - first < perBlock ? rows - first : perBlock);
  if (p.rotation.pairs > 0)
    makeAngles(p, first, count, angles);
  for (int r = 0; r < count; ++r)
    moveRow<M>(p, first + r, angles + r * p.rotation.pairs);
}

/// Chooses the kernel: one that reads whole rotation pairs in 16-byte chunks if all extents allow
/// it, otherwise one that moves single chunks or elements.
void launch(const Call &call, Qkv p, Mode mode, int64_t rows) {
  bool wholeChunks =
      p.rotation.pairs % kChunk == 0 && !(p.rotation.pairs > 0 && p.rotation.interleaved);
  if (!wholeChunks)
    mode = Mode::Scalar;
  // All channels of a head are rotated, or none; each half consists of whole chunks.
  bool wholeHeads = !p.rotation.interleaved &&
                    (p.rotation.pairs == 0 || 2 * p.rotation.pairs == p.channels) &&
                    p.channels % (2 * kChunk) == 0 && p.rotation.pairs <= kPairsMax;
  int mates = p.perRow * (p.channels / (2 * kChunk));
  int perGroup = std::max(kPairsOfBlock / std::max(mates, 1), 1);
  if (wholeHeads && perGroup * p.rotation.pairs > kAnglesMax / 4)
    perGroup = 1;
  if (wholeHeads && mode == Mode::Bf16)
    return launchPairs<Mode::Bf16>(p, rows, perGroup, queueOf(call));
  if (wholeHeads && mode == Mode::F16)
    return launchPairs<Mode::F16>(p, rows, perGroup, queueOf(call));
  // A block has as many rows as it can hold angles for, unless that makes fewer than kBlocksMin
  // blocks.
  int64_t most = std::max<int64_t>(kAnglesMax / std::max(p.rotation.pairs, 1), 1);
  auto perBlock = static_cast<int>(std::min({most, kRowsPerBlock, ceilDiv(rows, kBlocksMin)}));
  auto shared = static_cast<size_t>(p.rotation.pairs * perBlock) * sizeof(float2);
  forMode(mode, [&]<Mode M>() {
    int slots = p.perRow * (p.channels / (M == Mode::Scalar ? 1 : kChunk));
    int threads = static_cast<int>(std::min<int64_t>(ceilDiv(slots, kWarp) * kWarp, 256));
    auto blocks = static_cast<unsigned>(ceilDiv(rows, perBlock));
    launchKernel(moveHeads<M>, blocks, threads, shared, queueOf(call), p, rows, perBlock);
  });
}

template <bool kRotated> void runSplit(const Call &call) {
  const Tensor &qkv = call.in[0], &q = call.out[0], &k = call.out[1], &v = call.out[2];
  Qkv p = partsOf(call, qkv, q, k, v, true);
  setPositions(p, call, 1);
  if (kRotated)
    p.rotation = rotationOf(call.attrs, false);
  launch(call, p, modeOf({&qkv, &q, &k, &v}, p.channels), q.shape[0] * q.shape[1]);
}

template <bool kRotated> void runMerge(const Call &call) {
  const Tensor &q = call.in[0], &k = call.in[1], &v = call.in[2], &qkv = call.out[0];
  Qkv p = partsOf(call, qkv, q, k, v, false);
  setPositions(p, call, 3);
  if (kRotated) // the inverse of split_qkv_rope with the same attributes
    p.rotation = rotationOf(call.attrs, true);
  launch(call, p, modeOf({&qkv, &q, &k, &v}, p.channels), q.shape[0] * q.shape[1]);
}

/// Rotation alone is a split in which all heads are queries.
void runRope(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  Qkv p = {dataOf(x), dataOf(y), dataOf(y), dataOf(y)};
  p.positions = x.shape[1];
  p.groups = 1;
  p.perRow = p.queries = p.all = static_cast<int>(x.shape[2]);
  p.channels = static_cast<int>(x.cols());
  p.split = true;
  setPositions(p, call, 1);
  p.rotation = rotationOf(call.attrs, call.attrs.inverse);
  launch(call, p, modeOf({&x, &y}, p.channels), x.shape[0] * x.shape[1]);
}

/// Refuses rotations whose angles for one position do not fit into 48 KiB of shared memory.
template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (const char *reason = kOracle->accepts(call))
    return reason;
  return cudaRefusal(CudaLimit::RotatedChannels, call.attrs.rotary_dim);
}

} // namespace

SHARDC_KERNEL(Rope, accepts, runRope);
SHARDC_KERNEL(SplitQkv, acceptsAs, runSplit<false>);
SHARDC_KERNEL(SplitQkvRope, accepts, runSplit<true>);
SHARDC_KERNEL(MergeQkv, acceptsAs, runMerge<false>);
SHARDC_KERNEL(MergeQkvRope, accepts, runMerge<true>);

} // namespace shardc::kernels::cuda
