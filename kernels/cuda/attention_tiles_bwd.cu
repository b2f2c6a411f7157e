// Gradients of attention, attention_qkv and attention_part on Hopper's tensor cores. With delta =
// do·o, P = exp(scale·q·kᵀ - lse) and dS = P·(do·vᵀ - delta):
//   dq = scale·dS·k, dk = scale·dSᵀ·q, dv = Pᵀ·do
// Two kernels compute them, so that each sum has one owner and a fixed order. A block of the first
// has 128 queries and loops over keys. A block of the second has 128 keys and loops over the
// queries of all heads of the keys' group. Both compute scores and gradients of probabilities,
// which makes seven products instead of five. P and dS, rounded to 16 bits, are first operands
// directly from registers. With a soft cap c, a score x becomes c·tanh(x/c), and dS has the factor
// 1 - tanh(x/c)². H100, measured like the forward pass: 447 TFLOP/s with one document per row, 343
// with documents of 1,024, 93 with documents of 128.
#include "kernels/cuda/TileAttention.h"
#include "kernels/cuda/attention_tiles.cuh"

namespace shardc::kernels::cuda {
namespace heads {
namespace {

// ---- gradients of queries ----

constexpr int kKeyStages = 2;

/// Shared memory of a block that computes dQ of a tile of queries: tiles of keys and values pass
/// through a ring. `has` and `free` are the ring's barriers.
template <int kChannels> struct QueryShared {
  using Tile = TileOf<kTileRows, kChannels>;
  uint8_t q[Tile::kBytes], dOut[Tile::kBytes], k[kKeyStages][Tile::kBytes],
      v[kKeyStages][Tile::kBytes];
  uint64_t hasQ, has[kKeyStages], free[kKeyStages];
};

template <int kChannels>
__device__ void copyKeys(const Maps &maps, const Sight &sight, QueryShared<kChannels> &shared,
                         int query, int head, int sample) {
  using Tile = TileOf<kTileRows, kChannels>;
  const Params &p = sight.p;
  int row = sight.chunk.row + query, begin = sight.begin(query);
  int end = sight.end(query + kTileRows - 1);
  int group = head / p.perGroup, inGroup = head % p.perGroup;
  uint32_t hasQ = hopper::sharedAddress(&shared.hasQ);
  hopper::expectBytes(hasQ, 2 * Tile::kBytes);
  Tile::load(maps.q, hopper::sharedAddress(shared.q), hasQ, p.q.at(group, inGroup, kChannels), row,
             sample);
  Tile::load(maps.dOut, hopper::sharedAddress(shared.dOut), hasQ, p.o.at(group, inGroup, kChannels),
             row, sample);
  RingPosition<kKeyStages> inRing;
  for (int key = begin; key < end; key += kTileRows, ++inRing.count) {
    uint32_t stage = stageOf(inRing), has = barrier(shared.has, stage);
    hopper::waitFor(barrier(shared.free, stage), inRing.parity() ^ 1);
    hopper::expectBytes(has, 2 * Tile::kBytes);
    Tile::load(maps.k, hopper::sharedAddress(shared.k[stage]), has, p.k.at(group, 0, kChannels),
               key, sample);
    Tile::load(maps.v, hopper::sharedAddress(shared.v[stage]), has, p.v.at(group, 0, kChannels),
               key, sample);
  }
}

/// Two queries of a thread, 8 rows apart.
struct QueryRows {
  int begins[2], ends[2]; ///< ranges of keys that they see
  float lse2[2], delta[2];

  __device__ __forceinline__ QueryRows(const Sight &sight, int row, int64_t statistics) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int query = min(row + 8 * i, sight.chunk.rows - 1);
      int64_t at = statistics + sight.chunk.row + query;
      begins[i] = sight.begin(query), ends[i] = sight.end(query);
      lse2[i] = sight.p.lse[at] * kLog2e, delta[i] = sight.p.delta[at];
    }
  }
  /// Replaces scores by probabilities.
  __device__ __forceinline__ void toProbabilities(const Softening &soften,
                                                  float (&s)[kTileRows / 2]) const {
    soften.cap(s);
#pragma unroll
    for (int j = 0; j < kTileRows / 2; ++j)
      s[j] = soften.prob(s[j], lse2[j / 2 % 2]);
  }
  /// Replaces probabilities by the gradients of scores; dProb has the gradients of probabilities.
  __device__ __forceinline__ void toGradients(const Softening &soften,
                                              const float (&dProb)[kTileRows / 2],
                                              float (&s)[kTileRows / 2]) const {
    if (soften.share > 0.0f) {
#pragma unroll
      for (int j = 0; j < kTileRows / 2; ++j)
        s[j] *= soften.slope(s[j], lse2[j / 2 % 2]);
    }
#pragma unroll
    for (int j = 0; j < kTileRows / 2; ++j)
      s[j] *= dProb[j] - delta[j / 2 % 2];
  }
};

/// A warpgroup computes dq of 64 queries; a thread has two rows, 8 apart.
template <int kChannels, bool kIsF16>
__device__ void sumQueries(const Sight &sight, QueryShared<kChannels> &shared, int query, int head,
                           int sample) {
  using Tile = TileOf<kTileRows, kChannels>;
  const Params &p = sight.p;
  const int begin = sight.begin(query), end = sight.end(query + kTileRows - 1);
  const int group = tiles::groupOfWarp(), first = query + group * kGroupRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = first + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane / 4;
  const int groupBegin = sight.begin(first), firstEnd = sight.end(first);
  const int lastBegin = sight.begin(first + kGroupRows - 1);
  const int groupEnd = sight.end(first + kGroupRows - 1);
  const Softening soften(p);
  const QueryRows rows(sight, row, p.statistics(sample, head));
  float s[kTileRows / 2], dProb[kTileRows / 2], dq[kChannels / 2] = {};
  uint32_t packed[kTileRows / 4];
  hopper::Factor q = Tile::rows(hopper::sharedAddress(shared.q), group * kGroupRows);
  hopper::Factor dOut = Tile::rows(hopper::sharedAddress(shared.dOut), group * kGroupRows);
  hopper::waitFor(hopper::sharedAddress(&shared.hasQ), 0);
  RingPosition<kKeyStages> inRing;
#pragma unroll 1
  for (int key0 = begin; key0 < end; key0 += kTileRows, ++inRing.count) {
    uint32_t stage = stageOf(inRing), free = barrier(shared.free, stage);
    hopper::waitFor(barrier(shared.has, stage), inRing.parity());
    if (key0 + kTileRows <= groupBegin || key0 >= groupEnd) {
      release(free);
      continue;
    }
    hopper::Factor k = Tile::rows(hopper::sharedAddress(shared.k[stage]), 0);
    hopper::Factor v = Tile::rows(hopper::sharedAddress(shared.v[stage]), 0);
    hopper::settle(s);
    hopper::settle(dProb);
    hopper::beginProducts();
    multiplyRows<Tile, Tile, kIsF16>(s, q, k);
    multiplyRows<Tile, Tile, kIsF16>(dProb, dOut, v);
    hopper::waitForProducts<1>();
    hopper::settle(s);
    bool seesAll = key0 >= lastBegin && key0 + kTileRows <= firstEnd;
    rows.toProbabilities(soften, s);
    if (!seesAll) {
#pragma unroll
      for (int j = 0; j < kTileRows / 2; ++j) {
        int key = key0 + j / 4 * 8 + lane % 4 * 2 + j % 2, i = j / 2 % 2;
        s[j] = key < rows.begins[i] || key >= rows.ends[i] ? 0.0f : s[j];
      }
    }
    hopper::waitForProducts<0>();
    hopper::settle(dProb);
    rows.toGradients(soften, dProb, s);
    pack<kIsF16>(s, packed);
    addProducts<kIsF16>(dq, packed, k);
    hopper::waitForProducts<0>();
    hopper::settle(dq);
    release(free);
  }
#pragma unroll
  for (int j = 0; j < kChannels / 2; ++j)
    dq[j] *= p.scale;
  tiles::syncGroup(group);
  writeRows<kChannels, kIsF16>(p.to[0], shared.q + group * kGroupRows * kRowBytes,
                               int64_t{sample} * p.queries + sight.chunk.row, first,
                               sight.chunk.rows,
                               p.q.at(head / p.perGroup, head % p.perGroup, kChannels), dq);
}

template <int kChannels, bool kIsF16>
__global__ void __launch_bounds__(kThreads)
    attentionQueryTiles(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  awaitPrevious();
  extern __shared__ __align__(1024) uint8_t memory[];
  auto &shared = *reinterpret_cast<QueryShared<kChannels> *>(memory);
  if (threadIdx.x == 0) {
    hopper::initBarrier(hopper::sharedAddress(&shared.hasQ), 1);
    for (uint32_t i = 0; i < kKeyStages; ++i) {
      hopper::initBarrier(barrier(shared.has, i), 1);
      hopper::initBarrier(barrier(shared.free, i), tiles::kWarpsThatMultiply);
    }
    hopper::fenceBarriers();
  }
  __syncthreads();
  QueryTile<kTileRows> tile(p);
  int head = static_cast<int>(blockIdx.y), sample = static_cast<int>(blockIdx.z);
  Sight sight(p, tile.chunk, sample);
  if (threadIdx.x < 128) {
    hopper::giveRegisters<24>();
    if (threadIdx.x == 0)
      copyKeys<kChannels>(maps, sight, shared, tile.query, head, sample);
  } else {
    hopper::takeRegisters<240>();
    sumQueries<kChannels, kIsF16>(sight, shared, tile.query, head, sample);
  }
}

// ---- gradients of keys and values ----

constexpr int kQueryStages = 3, kQueryRows = 64; ///< queries per stage

/// Statistics and key ranges of a stage's queries. `first` is the position of the first query;
/// negative: no more stages.
struct QueryWords {
  alignas(8) float lse2[kQueryRows], delta[kQueryRows];
  int begins[kQueryRows];
  int first;
};

/// The values for the two adjacent columns (of eight) to which a thread's sum j belongs.
__device__ __forceinline__ float2 pairOf(const float *words, int j) {
  return *reinterpret_cast<const float2 *>(words + j / 4 * 8 + threadIdx.x % 4 * 2);
}

/// Shared memory of a block that computes dK and dV of a tile of keys: tiles of queries and dO pass
/// through a ring.
template <int kChannels> struct KeyShared {
  using Tile = TileOf<kTileRows, kChannels>;
  using Queries = TileOf<kQueryRows, kChannels>;
  uint8_t k[Tile::kBytes], v[Tile::kBytes], q[kQueryStages][Queries::kBytes],
      dOut[kQueryStages][Queries::kBytes];
  QueryWords words[kQueryStages];
  uint64_t hasK, has[kQueryStages], free[kQueryStages];
};

/// The copying warp. Its first thread starts the copies of tiles.
template <int kChannels>
__device__ void copyQueries(const Maps &maps, const Params &p, KeyShared<kChannels> &shared,
                            int key, int group, int sample) {
  using Tile = TileOf<kTileRows, kChannels>;
  using Queries = TileOf<kQueryRows, kChannels>;
  const int lane = static_cast<int>(threadIdx.x);
  const int lastKey = min(key + kTileRows, p.keys) - 1;
  if (lane == 0) {
    uint32_t hasK = hopper::sharedAddress(&shared.hasK);
    hopper::expectBytes(hasK, 2 * Tile::kBytes);
    Tile::load(maps.k, hopper::sharedAddress(shared.k), hasK, p.k.at(group, 0, kChannels), key,
               sample);
    Tile::load(maps.v, hopper::sharedAddress(shared.v), hasK, p.v.at(group, 0, kChannels), key,
               sample);
  }
  RingPosition<kQueryStages> inRing;
  // Ends of the ranges of queries that see a key of the tile, for each chunk.
  int ends[2] = {p.chunks[0].rows, p.chunks[1].rows};
  for (int head = group * p.perGroup; head < (group + 1) * p.perGroup; ++head)
    for (int number = 0; number < p.chunkCount; ++number) {
      Sight sight(p, number, sample);
      const Chunk &chunk = sight.chunk;
      const int64_t statistics = p.statistics(sample, head) + chunk.row;
      int query = p.causal ? max(key - chunk.position, 0) : 0;
      for (; query < ends[number]; query += kQueryRows, ++inRing.count) {
        int begins[2];
        float lse[2], delta[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int at = query + lane + kWarp * i;
          bool isThere = at < chunk.rows;
          begins[i] = isThere ? sight.begin(at) : INT32_MAX;
          lse[i] = isThere ? p.lse[statistics + at] : 0.0f;
          delta[i] = isThere ? p.delta[statistics + at] : 0.0f;
        }
        if (__shfl_sync(0xffffffffu, begins[0], 0) > lastKey) {
          ends[number] = query;
          break;
        }
        uint32_t stage = stageOf(inRing), has = barrier(shared.has, stage);
        hopper::waitFor(barrier(shared.free, stage), inRing.parity() ^ 1);
        if (lane == 0) {
          hopper::expectBytes(has, 2 * Queries::kBytes);
          int inGroup = head % p.perGroup, row = chunk.row + query;
          Queries::load(maps.halfQ, hopper::sharedAddress(shared.q[stage]), has,
                        p.q.at(group, inGroup, kChannels), row, sample);
          Queries::load(maps.halfDOut, hopper::sharedAddress(shared.dOut[stage]), has,
                        p.o.at(group, inGroup, kChannels), row, sample);
        }
        QueryWords &words = shared.words[stage];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int at = lane + kWarp * i;
          words.begins[at] = begins[i], words.lse2[at] = lse[i] * kLog2e;
          words.delta[at] = delta[i];
        }
        if (lane == 0)
          words.first = chunk.position + query;
        __syncwarp();
        if (lane == 0)
          hopper::arrive(has);
      }
    }
  hopper::waitFor(barrier(shared.free, stageOf(inRing)), inRing.parity() ^ 1);
  if (lane == 0) {
    shared.words[stageOf(inRing)].first = -1;
    hopper::arrive(barrier(shared.has, stageOf(inRing)));
    hopper::arrive(barrier(shared.has, stageOf(inRing)));
  }
}

/// Replaces the scores of a stage's queries by probabilities.
__device__ __forceinline__ void toProbabilities(const Softening &soften, const QueryWords &words,
                                                float (&s)[kQueryRows / 2]) {
  soften.cap(s);
#pragma unroll
  for (int j = 0; j < kQueryRows / 2; j += 4) {
    float2 lse2 = pairOf(words.lse2, j);
#pragma unroll
    for (int i = 0; i < 4; i += 2)
      s[j + i] = soften.prob(s[j + i], lse2.x), s[j + i + 1] = soften.prob(s[j + i + 1], lse2.y);
  }
}

/// Replaces probabilities by the gradients of scores; dProb has the gradients of probabilities.
__device__ __forceinline__ void toGradients(const Softening &soften, const QueryWords &words,
                                            const float (&dProb)[kQueryRows / 2],
                                            float (&s)[kQueryRows / 2]) {
  if (soften.share > 0.0f) {
#pragma unroll
    for (int j = 0; j < kQueryRows / 2; ++j)
      s[j] *= soften.slope(s[j], words.lse2[j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2]);
  }
#pragma unroll
  for (int j = 0; j < kQueryRows / 2; j += 4) {
    float2 delta = pairOf(words.delta, j);
#pragma unroll
    for (int i = 0; i < 4; i += 2)
      s[j + i] *= dProb[j + i] - delta.x, s[j + i + 1] *= dProb[j + i + 1] - delta.y;
  }
}

/// A warpgroup computes dk and dv of 64 keys; a thread has two rows, 8 apart.
template <int kChannels, bool kIsF16>
__device__ void sumKeys(const Params &p, KeyShared<kChannels> &shared, int key, int group,
                        int sample) {
  using Tile = TileOf<kTileRows, kChannels>;
  using Queries = TileOf<kQueryRows, kChannels>;
  const int ofWarp = tiles::groupOfWarp(), first = key + ofWarp * kGroupRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = first + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane / 4;
  const Softening soften(p);
  float s[kQueryRows / 2], dProb[kQueryRows / 2], dk[kChannels / 2] = {}, dv[kChannels / 2] = {};
  uint32_t probs[kQueryRows / 4], gradients[kQueryRows / 4];
  hopper::Factor k = Tile::rows(hopper::sharedAddress(shared.k), ofWarp * kGroupRows);
  hopper::Factor v = Tile::rows(hopper::sharedAddress(shared.v), ofWarp * kGroupRows);
  hopper::waitFor(hopper::sharedAddress(&shared.hasK), 0);
  RingPosition<kQueryStages> inRing;
#pragma unroll 1
  for (;; ++inRing.count) {
    uint32_t stage = stageOf(inRing), free = barrier(shared.free, stage);
    hopper::waitFor(barrier(shared.has, stage), inRing.parity());
    const QueryWords &words = shared.words[stage];
    const int query = __shfl_sync(0xffffffffu, words.first, 0);
    if (query < 0)
      break;
    const int firstBegin = __shfl_sync(0xffffffffu, words.begins[0], 0);
    const int lastBegin = __shfl_sync(0xffffffffu, words.begins[kQueryRows - 1], 0);
    if (firstBegin >= first + kGroupRows || (p.causal && query + kQueryRows <= first)) {
      release(free);
      continue;
    }
    hopper::Factor q = Queries::rows(hopper::sharedAddress(shared.q[stage]), 0);
    hopper::Factor dOut = Queries::rows(hopper::sharedAddress(shared.dOut[stage]), 0);
    hopper::settle(s);
    hopper::settle(dProb);
    hopper::beginProducts();
    multiplyRows<Tile, Queries, kIsF16>(s, k, q);
    multiplyRows<Tile, Queries, kIsF16>(dProb, v, dOut);
    const bool seesAll = lastBegin <= first && (!p.causal || query >= first + kGroupRows - 1);
    hopper::waitForProducts<1>();
    hopper::settle(s);
    toProbabilities(soften, words, s);
    if (!seesAll) {
#pragma unroll
      for (int j = 0; j < kQueryRows / 2; ++j) {
        int col = j / 4 * 8 + lane % 4 * 2 + j % 2, mine = row + j / 2 % 2 * 8;
        if (words.begins[col] > mine || (p.causal && mine > query + col))
          s[j] = 0.0f;
      }
    }
    pack<kIsF16>(s, probs);
    addProducts<kIsF16>(dv, probs, dOut);
    hopper::waitForProducts<1>();
    hopper::settle(dProb);
    toGradients(soften, words, dProb, s);
    pack<kIsF16>(s, gradients);
    addProducts<kIsF16>(dk, gradients, q);
    hopper::waitForProducts<0>();
    hopper::settle(dk);
    hopper::settle(dv);
    release(free);
  }
#pragma unroll
  for (int j = 0; j < kChannels / 2; ++j)
    dk[j] *= p.scale;
  tiles::syncGroup(ofWarp);
  int64_t sampleRow = int64_t{sample} * p.keys;
  writeRows<kChannels, kIsF16>(p.to[1], shared.k + ofWarp * kGroupRows * kRowBytes, sampleRow,
                               first, p.keys, p.k.at(group, 0, kChannels), dk);
  writeRows<kChannels, kIsF16>(p.to[2], shared.v + ofWarp * kGroupRows * kRowBytes, sampleRow,
                               first, p.keys, p.v.at(group, 0, kChannels), dv);
}

template <int kChannels, bool kIsF16>
__global__ void __launch_bounds__(kThreads)
    attentionKeyTiles(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  awaitPrevious();
  extern __shared__ __align__(1024) uint8_t memory[];
  auto &shared = *reinterpret_cast<KeyShared<kChannels> *>(memory);
  if (threadIdx.x == 0) {
    hopper::initBarrier(hopper::sharedAddress(&shared.hasK), 1);
    for (uint32_t i = 0; i < kQueryStages; ++i) {
      hopper::initBarrier(barrier(shared.has, i), 2); // one for the tiles, one for the words
      hopper::initBarrier(barrier(shared.free, i), tiles::kWarpsThatMultiply);
    }
    hopper::fenceBarriers();
  }
  __syncthreads();
  int key = static_cast<int>(blockIdx.x) * kTileRows, group = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z);
  if (threadIdx.x < 128) {
    hopper::giveRegisters<24>();
    if (threadIdx.x < kWarp)
      copyQueries<kChannels>(maps, p, shared, key, group, sample);
  } else {
    hopper::takeRegisters<240>();
    sumKeys<kChannels, kIsF16>(p, shared, key, group, sample);
  }
}

// ---- on the host ----

template <int kChannels, bool kIsF16> void launch(const TileOperands &of, Queue &queue) {
  const Params &p = of.p;
  launchDelta(of, queue);
  auto start = [&](auto kernel, size_t bytes, unsigned tiles, int heads) {
    static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)));
    dim3 grid(tiles, static_cast<unsigned>(heads), static_cast<unsigned>(of.samples));
    launchKernel(kernel, grid, kThreads, bytes, queue, of.maps, p);
  };
  start(attentionKeyTiles<kChannels, kIsF16>, sizeof(KeyShared<kChannels>),
        static_cast<unsigned>(ceilDiv(p.keys, kTileRows)), p.heads / p.perGroup);
  start(attentionQueryTiles<kChannels, kIsF16>, sizeof(QueryShared<kChannels>),
        QueryTile<kTileRows>::ofAll(p), p.heads);
}

} // namespace
} // namespace heads

void launchTileAttentionBwd(const Call &call, const AttentionOp &op, float *delta) {
  heads::TileOperands operands(call, op);
  operands.p.delta = delta;
  if (!operands.isThere)
    return reportError(queueOf(call), "cuTensorMapEncodeTiled", cudaErrorInvalidValue);
  heads::forHeads(operands, [&]<int kChannels, bool kIsF16>() {
    heads::launch<kChannels, kIsF16>(operands, queueOf(call));
  });
}

} // namespace shardc::kernels::cuda
