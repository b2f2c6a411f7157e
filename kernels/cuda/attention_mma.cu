// attention, attention_qkv and attention_part by mma.sync: o = softmax(scale·q·kᵀ)·v over the keys
// that a query sees; lse = log of the softmax's sum. A block processes a tile of queries of one
// head; each warp has 16 or 32 of them, with all their scores and outputs in registers. The copy of
// the next keys runs during the softmax and the product with values, and that of values during the
// product with keys. Tiles of keys begin at multiples of their size, so that a row's result does
// not depend on its place in a tile of queries.
#include "kernels/cuda/MmaAttention.h"
#include "kernels/cuda/attention_mma.cuh"

namespace shardc::kernels::cuda {
namespace heads {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

/// Queries and keys of a block. Heads of up to 128 channels leave registers for 32 queries a warp.
template <typename Size> struct Forward {
  static constexpr int kParts = Size::kChannels <= 128 ? 2 : 1; ///< tiles of 16 queries of a warp
  static constexpr int kQueries = kWarps * kParts * 16, kKeys = Size::kChannels == 256 ? 32 : 64;
  static constexpr int kBytesOfQ = kQueries * Size::kChannels * 2;
  static constexpr int kBytesOfK = kKeys * Size::kChannels * 2;
  static constexpr int kBytes = kBytesOfQ + kBytesOfK + kKeys * Size::kValues * 2;
  static_assert(kBytes <= kMmaBytesMax);
};

/// Two queries of a lane in each of a warp's parts, 8 rows apart, and what is known of their rows.
template <int kParts> struct Softmax {
  int begins[kParts][2]; ///< first keys that they see
  float largest[kParts][2], total[kParts][2];

  __device__ __forceinline__ Softmax(const Sight &sight, int row) {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        begins[m][i] = sight.begin(row + 16 * m + 8 * i);
        largest[m][i] = -INFINITY, total[m][i] = 0.0f;
      }
  }

  /// Sets the scores of a tile, whose first key of this lane is `key`, to -inf where a query does
  /// not see the key.
  template <int kTiles>
  __device__ __forceinline__ void hide(float (&s)[kParts][kTiles][4], const Sight &sight, int row,
                                       int key) const {
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
      const int ends[2] = {sight.end(row + 16 * m), sight.end(row + 16 * m + 8)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int at = key + 8 * n + e % 2;
          if (at < begins[m][e / 2] || at >= ends[e / 2])
            s[m][n][e] = -INFINITY;
        }
    }
  }

  /// Replaces scores by exp(factor·(score - row maximum)), and scales `o` down where the maximum
  /// grew. `factor` is for exponents of 2.
  template <int kTiles, int kValueTiles>
  __device__ __forceinline__ void add(float (&s)[kParts][kTiles][4],
                                      float (&o)[kParts][kValueTiles][4], float factor) {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float most = largest[m][i];
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          most = fmaxf(most, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        // A row that has not seen a key yet has only zeros.
        float top = most == -INFINITY ? 0.0f : most * factor;
        float shrink = exp2Of(largest[m][i] * factor - top), sum = 0.0f;
        largest[m][i] = most;
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) {
            s[m][n][e] = exp2Of(fmaf(s[m][n][e], factor, -top));
            sum += s[m][n][e];
          }
        total[m][i] = total[m][i] * shrink + sum;
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n)
          o[m][n][2 * i] *= shrink, o[m][n][2 * i + 1] *= shrink;
      }
  }
};

/// Divides the outputs of a warp's queries, from `first` on, by their sums, and writes them and the
/// logarithms.
template <bool kIsF16, int kParts, int kTiles>
__device__ __forceinline__ void write(const Sight &sight, const Softmax<kParts> &softmax,
                                      const Softening &soften, int head, int sample, int first,
                                      float (&o)[kParts][kTiles][4]) {
  const Params &p = sight.p;
  const Chunk &chunk = sight.chunk;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{sample} * p.queries + chunk.row + first;
  uint16_t *to = headOf(p.to[0], row, p.o.at(head / p.perGroup, head % p.perGroup, p.values));
#pragma unroll
  for (int m = 0; m < kParts; ++m) {
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = softmax.total[m][i];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int query = first + lane / 4 + 16 * m + 8 * i;
      if (lane % 4 == 0 && query < chunk.rows)
        p.lse[p.statistics(sample, head) + chunk.row + query] =
            (softmax.largest[m][i] * soften.factor + __log2f(total)) * kLn2;
      inverse[i] = 1.0f / total;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        o[m][n][e] *= inverse[e / 2];
    mma::storeRows<kIsF16>(to + 16 * m * p.to[0].row, p.to[0].row, chunk.rows - first - 16 * m,
                           p.values, o[m]);
  }
}

/// Applies dropout to probabilities and rounds them. `row` and `key` are the lane's first query and
/// the tile's first key.
template <bool kIsF16, bool kDrops, int kParts, int kTiles>
__device__ __forceinline__ void packProbabilities(const Drops &drops, int row, int key,
                                                  float (&s)[kParts][kTiles][4],
                                                  uint32_t (&probs)[kParts][kTiles / 2][4]) {
#pragma unroll
  for (int m = 0; m < kParts; ++m) {
    if constexpr (kDrops) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float factors[4];
        drops.ofQueries(row + 16 * m, key + 8 * n, factors);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[m][n][e] *= factors[e];
      }
    }
    mma::pack<kIsF16>(s[m], probs[m]);
  }
}

template <typename Size, bool kIsF16, bool kDrops>
__global__ void __launch_bounds__(kThreads) attentionMma(const __grid_constant__ Params p) {
  awaitPrevious();
  using Sizes = Forward<Size>;
  constexpr int kParts = Sizes::kParts, kKeys = Sizes::kKeys;
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t q = mma::sharedAddress(memory), k = q + Sizes::kBytesOfQ, v = k + Sizes::kBytesOfK;
  const QueryTile<Sizes::kQueries> tile(p);
  const int head = static_cast<int>(blockIdx.y), sample = static_cast<int>(blockIdx.z);
  const int group = head / p.perGroup, inGroup = head % p.perGroup;
  const Sight sight(p, tile.chunk, sample);
  const Chunk &chunk = sight.chunk;
  const int64_t keyRow = int64_t{sample} * p.keys;
  const int64_t queryRow = int64_t{sample} * p.queries + chunk.row;
  const uint16_t *keys = headOf(p.from[1], keyRow, p.k.at(group, 0, p.channels));
  const uint16_t *values = headOf(p.from[2], keyRow, p.v.at(group, 0, p.values));
  const int begin = sight.begin(tile.query) / kKeys * kKeys;
  const int end = sight.end(tile.query + Sizes::kQueries - 1);
  mma::copyRows<Size::kChannels, Sizes::kQueries, kThreads>(
      q, headOf(p.from[0], queryRow, p.q.at(group, inGroup, p.channels)), p.from[0].row, tile.query,
      chunk.rows, p.channels);
  auto copyKeys = [&](int key) {
    mma::copyRows<Size::kChannels, kKeys, kThreads>(k, keys, p.from[1].row, key, p.keys,
                                                    p.channels);
    mma::endCopies();
  };
  copyKeys(begin);

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int firstRow = static_cast<int>(threadIdx.x) / kWarp * kParts * 16; ///< of the warp's tile
  const int first = tile.query + firstRow, row = first + lane / 4;
  const int warpBegin = sight.begin(first), warpEnd = sight.end(first + kParts * 16 - 1);
  const int lastBegin = sight.begin(first + kParts * 16 - 1), firstEnd = sight.end(first);
  const Softening soften(p);
  const Drops drops(p, chunk, head, sample);
  Softmax<kParts> softmax(sight, row);
  const mma::FirstRows<Size::kChannels, kParts, false> queries(q, firstRow);
  const auto ofK = mma::LaneRow::ofColumns<Size::kChannels>(k, 0);
  const auto ofV = mma::LaneRow::ofRows<Size::kValues>(v, 0);
  float o[kParts][Size::kValues / 8][4] = {};
#pragma unroll 1
  for (int key = begin; key < end; key += kKeys) {
    mma::awaitCopies<0>();
    __syncthreads();
    mma::copyRows<Size::kValues, kKeys, kThreads>(v, values, p.from[2].row, key, p.keys, p.values);
    mma::endCopies();
    const bool seesAny = key < warpEnd && key + kKeys > warpBegin;
    float s[kParts][kKeys / 8][4] = {};
    if (seesAny)
      mma::addAlongRows<Size::kChannels, kIsF16>(s, queries, ofK);
    mma::awaitCopies<0>();
    __syncthreads();
    if (key + kKeys < end)
      copyKeys(key + kKeys);
    if (!seesAny)
      continue;
    if (soften.share != 0.0f)
      soften.capAll(s);
    if (key < lastBegin || key + kKeys > firstEnd)
      softmax.hide(s, sight, row, key + lane % 4 * 2);
    softmax.add(s, o, soften.factor);
    uint32_t probs[kParts][kKeys / 16][4];
    packProbabilities<kIsF16, kDrops>(drops, row, key, s, probs);
    mma::addAcrossRows<Size::kValues, kIsF16>(o, probs, ofV);
  }
  write<kIsF16>(sight, softmax, soften, head, sample, first, o);
}

} // namespace
} // namespace heads

bool hasMmaAttention(const Call &call, const AttentionOp &op) { return heads::haveTiles(call, op); }

void launchMmaAttention(const Call &call, const AttentionOp &op) {
  heads::Operands of(call, op);
  heads::forMmaKernels(of, [&]<typename Size, bool kIsF16, bool kDrops>() {
    using Sizes = heads::Forward<Size>;
    dim3 grid(heads::QueryTile<Sizes::kQueries>::ofAll(of.p), static_cast<unsigned>(of.p.heads),
              static_cast<unsigned>(of.samples));
    heads::launchTiles(heads::attentionMma<Size, kIsF16, kDrops>, grid, heads::kThreads,
                       Sizes::kBytes, of.p, queueOf(call));
  });
}

} // namespace shardc::kernels::cuda
