// Heads of latent attention, and columns of rows (kernels/host/LatentHeads.cpp). Mapping: a block
// has a row of batch and sequence. It computes the cosines and sines of the row's position into
// shared memory, once for all heads; then its threads take chunks of 8 channels of q, k and v, or
// single ones where rows are no whole chunks of neighbours that turn together. The gradient of
// krot is a sum over heads: each thread adds a pair of channels of every n-th head, then partial
// sums are added in order. Limited by memory: each element is read once and written once.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rotary.cuh"

#include <numeric>

namespace shardc::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRotatedMax = 1024; ///< channels whose angles and sums are in shared memory

struct Latent {
  Data q, k, v;                  ///< heads
  Data queries, keyValues, krot; ///< rows
  const int32_t *given;          ///< positions of rows, or null
  int64_t positions;
  int heads, plain, rotated, values;
  Turns turns;

  __device__ int keys() const { return plain + rotated; }
};

/// A chunk of channels, or one pair of neighbours where the mode is Scalar.
template <Mode M> inline constexpr int kWidth = M == Mode::Scalar ? 1 : kChunk;

__device__ __forceinline__ void makeAngles(const Latent &p, int64_t row, float2 *angles) {
  int64_t position = p.given ? p.given[row] : row % p.positions;
  for (int i = static_cast<int>(threadIdx.x); i < p.turns.pairs; i += kThreads)
    angles[i] = angleAt(p.turns, position, frequencyOf(p.turns, i));
  __syncthreads();
}

/// Of rotated channels [i, i + width), which are whole pairs of neighbours in chunks.
__device__ __forceinline__ void turn8(const float2 *angles, int i, float (&v)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; j += 2)
    rotate(angles[(i + j) / 2], v[j], v[j + 1]);
}

/// A rotated channel of a row of them, wherever its mate is.
__device__ __forceinline__ float turned(const Latent &p, const float2 *angles, const Data &from,
                                        int64_t at, int i) {
  bool isInterleaved = p.turns.interleaved;
  int pair = isInterleaved ? i / 2 : i % p.turns.pairs;
  bool isSecond = isInterleaved ? i % 2 != 0 : i >= p.turns.pairs;
  int64_t first = at + (isInterleaved ? 2 * pair : pair);
  float a = element(from, first);
  float b = element(from, first + (isInterleaved ? 1 : p.turns.pairs));
  rotate(angles[pair], a, b);
  return isSecond ? b : a;
}

/// Moves channels [i, i + width) of `n` that begin at `in` and `out`; those from `first` on turn.
template <Mode M>
__device__ __forceinline__ void move(const Latent &p, const float2 *angles, const Data &from,
                                     int64_t in, const Data &to, int64_t out, int i, int first) {
  if constexpr (M == Mode::Scalar) {
    setElement(to, out + i,
               i < first ? element(from, in + i) : turned(p, angles, from, in + first, i - first));
  } else {
    float v[kChunk];
    load8<M>(from, in + i, kChunk, v);
    if (i >= first)
      turn8(angles, i - first, v);
    store8<M>(to, out + i, kChunk, v);
  }
}

/// The items of a head: chunks of q, then of k's channels without positions, of v, and of k's with.
template <Mode M, bool kBackward>
__device__ __forceinline__ void moveHeads(const Latent &p, int64_t row, const float2 *angles) {
  constexpr int kW = kWidth<M>;
  int keys = p.keys(), both = p.plain + p.values;
  int items = (keys + both + (kBackward ? 0 : p.rotated)) / kW;
  for (int at = static_cast<int>(threadIdx.x); at < p.heads * items; at += kThreads) {
    int64_t head = row * p.heads + at / items;
    int i = at % items * kW;
    if (i < keys) {
      const Data &from = kBackward ? p.q : p.queries, &to = kBackward ? p.queries : p.q;
      move<M>(p, angles, from, head * keys, to, head * keys, i, p.plain);
      continue;
    }
    i -= keys;
    if (i >= both) { // forward only: the same for all heads
      move<M>(p, angles, p.krot, row * p.rotated, p.k, head * keys + p.plain, i - both, 0);
      continue;
    }
    bool isValue = i >= p.plain;
    const Data &heads = isValue ? p.v : p.k;
    int64_t own = isValue ? head * p.values - p.plain : head * keys, rows = head * both;
    move<M>(p, angles, kBackward ? heads : p.keyValues, kBackward ? own : rows,
            kBackward ? p.keyValues : heads, kBackward ? rows : own, i, both);
  }
}

template <Mode M>
__global__ void __launch_bounds__(kThreads) makeHeads(const __grid_constant__ Latent p) {
  awaitPrevious();
  __shared__ float2 angles[kRotatedMax / 2];
  makeAngles(p, blockIdx.x, angles);
  moveHeads<M, false>(p, blockIdx.x, angles);
}

/// Sums over heads of the rotated channels of dk, turned back.
__device__ __forceinline__ void sumHeads(const Latent &p, int64_t row, const float2 *angles,
                                         float2 *sums) {
  int pairs = p.turns.pairs, teams = max(kThreads / pairs, 1);
  int team = static_cast<int>(threadIdx.x) / pairs;
  for (int pair = static_cast<int>(threadIdx.x) % pairs; pair < pairs && team < teams;
       pair += kThreads) {
    int first = p.turns.interleaved ? 2 * pair : pair;
    int second = p.turns.interleaved ? first + 1 : pair + pairs;
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
    setElement(p.krot, at + (p.turns.interleaved ? 2 * pair : pair), sum.x);
    setElement(p.krot, at + (p.turns.interleaved ? 2 * pair + 1 : pair + pairs), sum.y);
  }
}

template <Mode M>
__global__ void __launch_bounds__(kThreads) differentiateHeads(const __grid_constant__ Latent p) {
  awaitPrevious();
  __shared__ float2 angles[kRotatedMax / 2],
      sums[kRotatedMax / 2 > kThreads ? kRotatedMax / 2 : kThreads];
  makeAngles(p, blockIdx.x, angles);
  moveHeads<M, true>(p, blockIdx.x, angles);
  sumHeads(p, blockIdx.x, angles, sums);
}

/// Whole chunks in every tensor, of pairs of neighbours.
Mode modeOfLatent(const Call &call, const Latent &p) {
  int64_t common = std::gcd(std::gcd(p.plain, p.rotated), p.values);
  if (!p.turns.interleaved)
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
  p.heads = static_cast<int>(heads[0].shape[2]);
  p.rotated = static_cast<int>(call.attrs.rotary_dim);
  p.plain = static_cast<int>(heads[0].shape[3]) - p.rotated;
  p.values = static_cast<int>(heads[2].shape[3]);
  p.turns = turnsOf(call.attrs, kBackward);
  auto blocks = static_cast<unsigned>(heads[0].shape[0] * heads[0].shape[1]);
  forMode(modeOfLatent(call, p), [&]<Mode M>() {
    if constexpr (kBackward)
      launchKernel(differentiateHeads<M>, blocks, kThreads, 0, queueOf(call), p);
    else
      launchKernel(makeHeads<M>, blocks, kThreads, 0, queueOf(call), p);
  });
}

template <const Kernel *kOracle> const char *accepts(const Call &call) {
  if (const char *reason = kOracle->accepts(call))
    return reason;
  return call.attrs.rotary_dim > kRotatedMax ? "rotary_dim is more than 1024" : nullptr;
}

// ---- columns ----

struct Columns {
  Data x, a, b;
  int64_t chunks;    ///< of all rows
  int64_t left, all; ///< columns of a and of x
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

const Kernel kLatentHeads = {"latent_heads_cuda", run<false>, accepts<&host::kLatentHeads>};
const Kernel kLatentHeadsBwd = {"latent_heads_bwd_cuda", run<true>,
                                accepts<&host::kLatentHeadsBwd>};
const Kernel kSplitColumns = {"split_columns_cuda", runColumns<false>,
                              acceptsAs<&host::kSplitColumns>};
const Kernel kJoinColumns = {"join_columns_cuda", runColumns<true>, acceptsAs<&host::kJoinColumns>};

} // namespace shardc::kernels::cuda
