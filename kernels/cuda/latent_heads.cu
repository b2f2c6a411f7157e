// Heads of latent attention, split_columns and join_columns (kernels/host/LatentHeads.cpp).
// Mapping: a thread moves one chunk of 8 channels of q, k or v, in each row of batch and sequence
// that its block processes, four rows at a time. Meanwhile the block computes the cosines and sines
// of the next rows' positions into shared memory. The gradient of krot is a sum over heads, which
// separate blocks compute: four threads have a chunk of a row, and each adds every fourth head. If
// rows do not consist of whole chunks of interleaved pairs, a block processes a row, and threads
// process single channels. Limited by memory: each element is read once and written once.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/rotary.cuh"
#include "runtime/base/CudaLimits.h"

#include <numeric>

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256;
/// Largest number of rotated channels, whose angles and sums are in shared memory.
constexpr int64_t kRotatedMax = cudaLimit(CudaLimit::LatentRotatedChannels).most;

struct Latent {
  Data q, k, v;                  ///< heads
  Data queries, keyValues, krot; ///< rows
  const int32_t *given;          ///< positions of rows, or null
  int64_t positions, rows;
  int heads, plain, rotated, values;
  int blocksOfMoves; ///< blocks that move; those after them add
  Rotation rotation;

  __host__ __device__ int keys() const { return plain + rotated; }
  __device__ int64_t positionOf(int64_t row) const {
    return given != nullptr ? given[row] : row % positions;
  }
};

/// Source and destination of a chunk of channels, or of a single channel.
struct Move {
  Data from, to;
  int64_t in, out;         ///< index in the first row
  int64_t inStep, outStep; ///< from row to row
  int rotated;             ///< index among the rotated channels; negative: not rotated
};

/// Number of moves of `width` channels per row.
template <bool kBackward> __host__ __device__ int movesOf(const Latent &p, int width) {
  return p.heads * ((p.keys() + p.plain + p.values + (kBackward ? 0 : p.rotated)) / width);
}

/// The moves of a head: channels of q, then the channels of k without rotation, then v, and, in the
/// forward pass, the rotated channels of k, which all heads share.
template <bool kBackward>
__device__ __forceinline__ Move moveOf(const Latent &p, int index, int width) {
  int keys = p.keys(), both = p.plain + p.values, items = movesOf<kBackward>(p, width) / p.heads;
  int head = index / items, i = index % items * width;
  int64_t rowOfKeys = int64_t{p.heads} * keys, key = int64_t{head} * keys;
  if (i < keys)
    return {kBackward ? p.q : p.queries,
            kBackward ? p.queries : p.q,
            key + i,
            key + i,
            rowOfKeys,
            rowOfKeys,
            i - p.plain};
  i -= keys;
  if (i >= both)
    return {p.krot,    p.k,       int64_t{i} - both, key + p.plain + i - both,
            p.rotated, rowOfKeys, i - both};
  bool isValue = i >= p.plain;
  const Data &heads = isValue ? p.v : p.k;
  int64_t own = isValue ? int64_t{head} * p.values + i - p.plain : key + i;
  int64_t rowOfOwn = isValue ? int64_t{p.heads} * p.values : rowOfKeys;
  int64_t row = int64_t{head} * both + i, rowOfRows = int64_t{p.heads} * both;
  if (kBackward)
    return {heads, p.keyValues, own, row, rowOfOwn, rowOfRows, -1};
  return {p.keyValues, heads, row, own, rowOfRows, rowOfOwn, -1};
}

// ---- whole chunks of interleaved pairs, which is the usual case ----

constexpr int kPairsMax = 256;   ///< pairs whose angles fit into shared memory
constexpr int kRowsAtOnce = 4;   ///< rows whose chunks a thread loads at the same time
constexpr int kBlocksEach = 4;   ///< blocks per multiprocessor
constexpr int kThreadsOfSum = 4; ///< threads per chunk of krot's gradient
constexpr int kHeadsOfSums = 16; ///< heads per additional row of summing blocks
static_assert(kThreadsOfSum * 2 == kChunk);

/// Computes the cosines and sines for kRowsAtOnce rows from `first` on.
__device__ __forceinline__ void makeAngles(const Latent &p, int64_t first, const float *frequencies,
                                           float2 (*angles)[kPairsMax]) {
  int pairs = p.rotation.pairs;
  for (int i = static_cast<int>(threadIdx.x); i < kRowsAtOnce * pairs; i += kThreads)
    if (int64_t row = first + i / pairs; row < p.rows)
      angles[i / pairs][i % pairs] = angleAt(p.rotation, p.positionOf(row), frequencies[i % pairs]);
}

/// Each thread moves one chunk of channels for kRowsAtOnce rows per iteration. The angles of the
/// next rows are computed while those of the current rows are used, so there are two tables.
template <Mode M, bool kBackward>
__device__ __forceinline__ void moveChunks(const Latent &p, int index) {
  __shared__ float frequencies[kPairsMax];
  __shared__ float2 angles[2][kRowsAtOnce][kPairsMax];
  for (int i = static_cast<int>(threadIdx.x); i < p.rotation.pairs; i += kThreads)
    frequencies[i] = frequencyOf(p.rotation, i);
  __syncthreads();
  bool isThere = index < movesOf<kBackward>(p, kChunk);
  Move move = moveOf<kBackward>(p, isThere ? index : 0, kChunk);
  int64_t step = int64_t{gridDim.x} * kRowsAtOnce, first = int64_t{blockIdx.x} * kRowsAtOnce;
  makeAngles(p, first, frequencies, angles[0]);
  for (int inRing = 0; first < p.rows; first += step, inRing ^= 1) {
    int count = isThere ? static_cast<int>(min(p.rows - first, int64_t{kRowsAtOnce})) : 0;
    Chunk<M> chunks[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
      if (r < count)
        chunks[r] = readChunk<M>(move.from, move.in + (first + r) * move.inStep, kChunk);
    __syncthreads(); // angles of these rows are ready, those of the previous rows are free
    makeAngles(p, first + step, frequencies, angles[inRing ^ 1]);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= count)
        continue;
      float v[kChunk];
      floatsOf<M>(chunks[r], v);
      if (move.rotated >= 0)
#pragma unroll
        for (int j = 0; j < kChunk; j += 2)
          rotate(angles[inRing][r][(move.rotated + j) / 2], v[j], v[j + 1]);
      store8<M>(move.to, move.out + (first + r) * move.outStep, kChunk, v);
    }
  }
}

/// Adds the rotated channels of dk over heads and rotates them back. `block` is the index among the
/// `blocks` blocks that do this.
template <Mode M>
__device__ __forceinline__ void sumChunks(const Latent &p, int block, int blocks) {
  constexpr int kSums = kThreads / kThreadsOfSum;
  int chunks = p.rotated / kChunk, rowsBeside = kSums / chunks;
  int sum = static_cast<int>(threadIdx.x) / kThreadsOfSum;
  int member = static_cast<int>(threadIdx.x) % kThreadsOfSum;
  int chunk = sum % chunks, pair = chunk * kThreadsOfSum + member;
  float frequency = frequencyOf(p.rotation, pair);
  int64_t step = int64_t{blocks} * rowsBeside;
  // All threads take part in each iteration, because they exchange sums.
  for (int64_t first = int64_t{block} * rowsBeside; first < p.rows; first += step) {
    int64_t row = first + sum / chunks;
    bool isThere = sum / chunks < rowsBeside && row < p.rows;
    float total[kChunk] = {};
#pragma unroll 8
    for (int head = member; head < (isThere ? p.heads : 0); head += kThreadsOfSum) {
      float v[kChunk];
      load8<M>(p.k, (row * p.heads + head) * p.keys() + p.plain + chunk * kChunk, kChunk, v);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        total[j] += v[j];
    }
    float2 own = {};
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      for (int offset = 1; offset < kThreadsOfSum; offset *= 2)
        total[j] += __shfl_xor_sync(0xffffffffu, total[j], offset);
      if (j / 2 == member)
        (j % 2 == 0 ? own.x : own.y) = total[j];
    }
    if (!isThere)
      continue;
    rotate(angleAt(p.rotation, p.positionOf(row), frequency), own.x, own.y);
    setElement(p.krot, row * p.rotated + 2 * pair, own.x);
    setElement(p.krot, row * p.rotated + 2 * pair + 1, own.y);
  }
}

template <Mode M, bool kBackward>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    moveRows(const __grid_constant__ Latent p) {
  awaitPrevious();
  int others = static_cast<int>(blockIdx.y) - p.blocksOfMoves;
  if (!kBackward || others < 0)
    moveChunks<M, kBackward>(p, static_cast<int>(blockIdx.y) * kThreads +
                                    static_cast<int>(threadIdx.x));
  else
    sumChunks<M>(p, others * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
                 (static_cast<int>(gridDim.y) - p.blocksOfMoves) * static_cast<int>(gridDim.x));
}

template <bool kBackward> void launchRows(const Call &call, Latent p, Mode mode) {
  Queue &queue = queueOf(call);
  const int64_t blocks = multiprocessorsOf(call) * kBlocksEach;
  p.blocksOfMoves = static_cast<int>(ceilDiv(movesOf<kBackward>(p, kChunk), kThreads));
  int64_t beside = p.blocksOfMoves + (kBackward ? ceilDiv(p.heads, kHeadsOfSums) : 0);
  dim3 grid(
      static_cast<unsigned>(std::clamp<int64_t>(blocks / beside, 1, ceilDiv(p.rows, kRowsAtOnce))),
      static_cast<unsigned>(beside));
  if (mode == Mode::Bf16)
    launchKernel(moveRows<Mode::Bf16, kBackward>, grid, kThreads, 0, queue, p);
  else if (mode == Mode::F16)
    launchKernel(moveRows<Mode::F16, kBackward>, grid, kThreads, 0, queue, p);
  else
    launchKernel(moveRows<Mode::Mixed, kBackward>, grid, kThreads, 0, queue, p);
}

// ---- single channels ----

__device__ __forceinline__ void makeAngles(const Latent &p, int64_t row, float2 *angles) {
  for (int i = static_cast<int>(threadIdx.x); i < p.rotation.pairs; i += kThreads)
    angles[i] = angleAt(p.rotation, p.positionOf(row), frequencyOf(p.rotation, i));
  __syncthreads();
}

/// Rotates channel i of the rotated channels that begin at `first`.
__device__ __forceinline__ float rotated(const Latent &p, const float2 *angles, const Data &from,
                                         int64_t first, int i) {
  bool isInterleaved = p.rotation.interleaved;
  int pair = isInterleaved ? i / 2 : i % p.rotation.pairs;
  bool isSecond = isInterleaved ? i % 2 != 0 : i >= p.rotation.pairs;
  first += isInterleaved ? 2 * pair : pair;
  float a = element(from, first);
  float b = element(from, first + (isInterleaved ? 1 : p.rotation.pairs));
  rotate(angles[pair], a, b);
  return isSecond ? b : a;
}

template <bool kBackward>
__device__ __forceinline__ void moveElements(const Latent &p, int64_t row, const float2 *angles) {
  for (int i = static_cast<int>(threadIdx.x); i < movesOf<kBackward>(p, 1); i += kThreads) {
    Move move = moveOf<kBackward>(p, i, 1);
    int64_t in = move.in + row * move.inStep;
    setElement(move.to, move.out + row * move.outStep,
               move.rotated < 0 ? element(move.from, in)
                                : rotated(p, angles, move.from, in - move.rotated, move.rotated));
  }
}

__global__ void __launch_bounds__(kThreads) makeHeads(const __grid_constant__ Latent p) {
  awaitPrevious();
  __shared__ float2 angles[kRotatedMax / 2];
  makeAngles(p, blockIdx.x, angles);
  moveElements<false>(p, blockIdx.x, angles);
}

/// Adds the rotated channels of dk over heads and rotates them back.
__device__ __forceinline__ void sumHeads(const Latent &p, int64_t row, const float2 *angles,
                                         float2 *sums) {
  int pairs = p.rotation.pairs, teams = max(kThreads / pairs, 1);
  int team = static_cast<int>(threadIdx.x) / pairs;
  for (int pair = static_cast<int>(threadIdx.x) % pairs; pair < pairs && team < teams;
       pair += kThreads) {
    int first = p.rotation.interleaved ? 2 * pair : pair;
    int second = p.rotation.interleaved ? first + 1 : pair + pairs;
    float2 sum = {0.0f, 0.0f};
    for (int head = team; head < p.heads; head += teams) {
      int64_t at = (row * p.heads + head) * p.keys() + p.plain;
      sum.x += element(p.k, at + first), sum.y += element(p.k, at + second);
    }
    sums[team * pairs + pair] = sum;
  }
  __syncthreads();
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
    float2 sum = sums[pair];
    for (int other = 1; other < teams; ++other)
      sum.x += sums[other * pairs + pair].x, sum.y += sums[other * pairs + pair].y;
    rotate(angles[pair], sum.x, sum.y);
    int64_t at = row * p.rotated;
    setElement(p.krot, at + (p.rotation.interleaved ? 2 * pair : pair), sum.x);
    setElement(p.krot, at + (p.rotation.interleaved ? 2 * pair + 1 : pair + pairs), sum.y);
  }
}

__global__ void __launch_bounds__(kThreads) differentiateHeads(const __grid_constant__ Latent p) {
  awaitPrevious();
  __shared__ float2 angles[kRotatedMax / 2],
      sums[kRotatedMax / 2 > kThreads ? kRotatedMax / 2 : kThreads];
  makeAngles(p, blockIdx.x, angles);
  moveElements<true>(p, blockIdx.x, angles);
  sumHeads(p, blockIdx.x, angles, sums);
}

/// The fastest mode if all tensors consist of whole chunks of interleaved pairs; otherwise Scalar.
Mode modeOfLatent(const Call &call, const Latent &p) {
  int64_t common = std::gcd(std::gcd(p.plain, p.rotated), p.values);
  if (!p.rotation.interleaved || p.rotation.pairs > kPairsMax)
    return Mode::Scalar;
  return modeOf({&call.in[0], &call.in[1], &call.in[2], &call.out[0], &call.out[1], &call.out[2]},
                common);
}

template <bool kBackward> void run(const Call &call) {
  const Tensor *heads = kBackward ? call.in : call.out, *rows = kBackward ? call.out : call.in;
  Latent p = {dataOf(heads[0]), dataOf(heads[1]), dataOf(heads[2]),
              dataOf(rows[0]),  dataOf(rows[1]),  dataOf(rows[2])};
  p.given = call.inCount > 3 ? static_cast<const int32_t *>(call.in[3].data) : nullptr;
  p.positions = heads[0].shape[1];
  p.rows = heads[0].shape[0] * p.positions;
  p.heads = static_cast<int>(heads[0].shape[2]);
  p.rotated = static_cast<int>(call.attrs.rotary_dim);
  p.plain = static_cast<int>(heads[0].shape[3]) - p.rotated;
  p.values = static_cast<int>(heads[2].shape[3]);
  p.rotation = rotationOf(call.attrs, kBackward);
  if (Mode mode = modeOfLatent(call, p); mode != Mode::Scalar)
    return launchRows<kBackward>(call, p, mode);
  launchKernel(kBackward ? differentiateHeads : makeHeads, static_cast<unsigned>(p.rows), kThreads,
               0, queueOf(call), p);
}

template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (const char *reason = kOracle->accepts(call))
    return reason;
  return cudaRefusal(CudaLimit::LatentRotatedChannels, call.attrs.rotary_dim);
}

// ---- columns ----

/// A chunk of elements, or a single one.
template <Mode M> inline constexpr int kWidth = M == Mode::Scalar ? 1 : kChunk;

struct Columns {
  Data x, a, b;
  int64_t chunks;    ///< chunks of all rows
  int64_t left, all; ///< columns of a, and columns of x
};

template <Mode M, bool kJoins>
__global__ void __launch_bounds__(kThreads) moveColumns(const __grid_constant__ Columns p) {
  awaitPrevious();
  constexpr int kW = kWidth<M>;
  int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= p.chunks)
    return;
  int64_t row = item / (p.all / kW), column = item % (p.all / kW) * kW;
  bool isLeft = column < p.left;
  const Data &part = isLeft ? p.a : p.b;
  int64_t own = isLeft ? row * p.left + column : row * (p.all - p.left) + column - p.left;
  int64_t whole = row * p.all + column;
  float v[kChunk];
  load8<M>(kJoins ? part : p.x, kJoins ? own : whole, kW, v);
  store8<M>(kJoins ? p.x : part, kJoins ? whole : own, kW, v);
}

template <bool kJoins> void runColumns(const Call &call) {
  const Tensor &x = kJoins ? call.out[0] : call.in[0];
  const Tensor &a = kJoins ? call.in[0] : call.out[0], &b = kJoins ? call.in[1] : call.out[1];
  Columns p = {dataOf(x), dataOf(a), dataOf(b), 0, a.cols(), x.cols()};
  forMode(modeOf({&x, &a, &b}, std::gcd(a.cols(), b.cols())), [&]<Mode M>() {
    p.chunks = x.numel() / kWidth<M>;
    launchKernel(moveColumns<M, kJoins>, static_cast<unsigned>(ceilDiv(p.chunks, kThreads)),
                 kThreads, 0, queueOf(call), p);
  });
}

} // namespace

SHARDC_KERNEL(LatentHeads, accepts, run<false>);
SHARDC_KERNEL(LatentHeadsBwd, accepts, run<true>);
SHARDC_KERNEL(SplitColumns, acceptsAs, runColumns<false>);
SHARDC_KERNEL(JoinColumns, acceptsAs, runColumns<true>);

} // namespace shardc::kernels::cuda
