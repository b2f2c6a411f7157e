// Gradients of attention, attention_qkv and attention_part by mma.sync. With delta = do·o,
// P = exp(scale·q·kᵀ - lse), M the factors of dropout, and dS = P·(M·(do·vᵀ) - delta):
//   dq = scale·dS·k, dk = scale·dSᵀ·q, dv = (M·P)ᵀ·do
// Two kernels compute them, so that each sum has one owner and a fixed order. A block of the first
// has 64 queries and loops over keys. A block of the second has 64 keys and loops over the queries
// of all heads of the keys' group; its scores are transposed, so that probabilities are first
// operands directly from registers in both. With a soft cap c, a score x becomes c·tanh(x/c), and
// dS has the factor 1 - tanh(x/c)².
#include "kernels/cuda/MmaAttention.h"
#include "kernels/cuda/attention_mma.cuh"

namespace shardc::kernels::cuda {
namespace heads {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

/// Replaces the scores of a tile of 16 × 8 elements by probabilities after dropout, and the
/// gradients of probabilities `dProb` by those of scores. Statistics and dropout's factors are of
/// each element.
template <bool kCaps, bool kDrops>
__device__ __forceinline__ void differentiate(const Softening &soften, const float (&lse2)[4],
                                              const float (&delta)[4], const float (&factors)[4],
                                              float (&s)[4], float (&dProb)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float share = kCaps ? s[e] : 0.0f, prob = soften.prob(s[e], lse2[e]);
    float factor = kDrops ? factors[e] : 1.0f;
    dProb[e] = prob * (factor * dProb[e] - delta[e]);
    if constexpr (kCaps) // a hidden score is -inf
      dProb[e] *= prob > 0.0f ? 1.0f - share * share : 0.0f;
    s[e] = prob * factor;
  }
}

/// Multiplies a warp's sums of 16 rows by `scale` and stores them like mma::storeRows().
template <bool kIsF16, int kTiles>
__device__ __forceinline__ void storeScaled(uint16_t *to, int64_t pitch, int rows, int columns,
                                            float scale, float (&sums)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      sums[n][e] *= scale;
  mma::storeRows<kIsF16>(to, pitch, rows, columns, sums);
}

// ---- gradients of queries ----

/// Sizes of a block: its queries, and shared memory for q, do, one or two tiles of keys, and one of
/// values. Heads of up to 128 channels leave registers for 32 queries a warp.
template <typename Size> struct QueryGradient {
  static constexpr int kParts = Size::kChannels <= 128 ? 2 : 1;
  static constexpr int kRows = kWarps * kParts * 16, kKeys = Size::kChannels <= 192 ? 32 : 16;
  static constexpr bool kIsHeld = Size::kChannels <= 64; ///< q and do stay in registers
  static constexpr int kBytesOfQ = kRows * Size::kChannels * 2;
  static constexpr int kBytesOfDOut = kRows * Size::kValues * 2;
  static constexpr int kBytesOfK = kKeys * Size::kChannels * 2;
  static constexpr int kBytesOfV = kKeys * Size::kValues * 2;
  static constexpr int kBytes = kBytesOfQ + kBytesOfDOut + 2 * kBytesOfK + kBytesOfV;
  static_assert(kBytes <= kMmaBytesMax);
};

/// Two queries of a lane in each of a warp's parts, 8 rows apart.
template <int kParts> struct QueryRows {
  int row;               ///< the first one in its chunk
  int begins[kParts][2]; ///< first keys that they see
  float lse2[kParts][2], delta[kParts][2];

  __device__ __forceinline__ QueryRows(const Sight &sight, int head, int sample, int row_)
      : row(row_) {
    const Params &p = sight.p;
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int query = min(row + 16 * m + 8 * i, sight.chunk.rows - 1);
        int64_t at = p.statistics(sample, head) + sight.chunk.row + query;
        begins[m][i] = sight.begin(query);
        lse2[m][i] = p.lse[at] * kLog2e, delta[m][i] = p.delta[at];
      }
  }

  /// Sets the scores of keys that a query does not see to -inf. `key` is the tile's first one.
  template <int kTiles>
  __device__ __forceinline__ void hide(const Sight &sight, int key,
                                       float (&s)[kParts][kTiles][4]) const {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int end = sight.end(row + 16 * m + e / 2 * 8);
        const int at = key + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          if (at + 8 * n < begins[m][e / 2] || at + 8 * n >= end)
            s[m][n][e] = -INFINITY;
      }
  }

  template <bool kCaps, bool kDrops, int kTiles>
  __device__ __forceinline__ void toGradients(const Softening &soften, const Drops &drops, int key,
                                              float (&s)[kParts][kTiles][4],
                                              float (&dProb)[kParts][kTiles][4]) const {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float factors[4];
        if constexpr (kDrops)
          drops.ofQueries(row + 16 * m, key + 8 * n, factors);
        differentiate<kCaps, kDrops>(soften, {lse2[m][0], lse2[m][0], lse2[m][1], lse2[m][1]},
                                     {delta[m][0], delta[m][0], delta[m][1], delta[m][1]}, factors,
                                     s[m][n], dProb[m][n]);
      }
  }
};

/// Copies the tiles of a block whose queries are those of one head.
template <typename Size> struct KeyCopies {
  using Sizes = QueryGradient<Size>;
  const Params &p;
  const int64_t queryRow, keyRow; ///< first rows of the chunk's queries and of the sample's keys
  const int group, inGroup;       ///< of the head
  const uint32_t k, v;            ///< tiles in shared memory: two of keys, one of values

  __device__ __forceinline__ void queries(uint32_t q, uint32_t dOut, int query, int end) const {
    mma::copyRows<Size::kChannels, Sizes::kRows, kThreads>(
        q, headOf(p.from[0], queryRow, p.q.at(group, inGroup, p.channels)), p.from[0].row, query,
        end, p.channels);
    mma::copyRows<Size::kValues, Sizes::kRows, kThreads>(
        dOut, headOf(p.dOut, queryRow, p.o.at(group, inGroup, p.values)), p.dOut.row, query, end,
        p.values);
  }
  __device__ __forceinline__ uint32_t tileOf(int key) const {
    return k + static_cast<uint32_t>(key / Sizes::kKeys % 2 * Sizes::kBytesOfK);
  }
  __device__ __forceinline__ void keys(int key) const {
    mma::copyRows<Size::kChannels, Sizes::kKeys, kThreads>(
        tileOf(key), headOf(p.from[1], keyRow, p.k.at(group, 0, p.channels)), p.from[1].row, key,
        p.keys, p.channels);
    mma::endCopies();
  }
  __device__ __forceinline__ void values(int key) const {
    mma::copyRows<Size::kValues, Sizes::kKeys, kThreads>(
        v, headOf(p.from[2], keyRow, p.v.at(group, 0, p.values)), p.from[2].row, key, p.keys,
        p.values);
    mma::endCopies();
  }
  /// Stores the gradients of a warp's queries, from `first` on.
  template <bool kIsF16, int kParts, int kTiles>
  __device__ __forceinline__ void store(int first, int rows, float (&dq)[kParts][kTiles][4]) const {
    uint16_t *to = headOf(p.to[0], queryRow + first, p.q.at(group, inGroup, p.channels));
#pragma unroll
    for (int m = 0; m < kParts; ++m)
      storeScaled<kIsF16>(to + 16 * m * p.to[0].row, p.to[0].row, rows - first - 16 * m, p.channels,
                          p.scale, dq[m]);
  }
};

template <typename Size, bool kIsF16, bool kDrops>
__global__ void __launch_bounds__(kThreads) attentionMmaQueries(const __grid_constant__ Params p) {
  awaitPrevious();
  using Sizes = QueryGradient<Size>;
  constexpr int kKeys = Sizes::kKeys, kRows = Sizes::kRows, kParts = Sizes::kParts;
  constexpr bool kIsHeld = Sizes::kIsHeld;
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t q = mma::sharedAddress(memory), dOut = q + Sizes::kBytesOfQ;
  const uint32_t k = dOut + Sizes::kBytesOfDOut, v = k + 2 * Sizes::kBytesOfK;
  const QueryTile<kRows> tile(p);
  const int head = static_cast<int>(blockIdx.y), sample = static_cast<int>(blockIdx.z);
  const int group = head / p.perGroup, inGroup = head % p.perGroup;
  const Sight sight(p, tile.chunk, sample);
  const Chunk &chunk = sight.chunk;
  const int64_t queryRow = int64_t{sample} * p.queries + chunk.row;
  const int begin = sight.begin(tile.query) / kKeys * kKeys;
  const int end = sight.end(tile.query + kRows - 1);
  const KeyCopies<Size> copy = {p, queryRow, int64_t{sample} * p.keys, group, inGroup, k, v};
  copy.queries(q, dOut, tile.query, chunk.rows);
  copy.keys(begin);
  copy.values(begin);

  const int firstRow = static_cast<int>(threadIdx.x) / kWarp * kParts * 16;
  const int first = tile.query + firstRow, last = first + kParts * 16 - 1;
  const int warpBegin = sight.begin(first), warpEnd = sight.end(last);
  const int lastBegin = sight.begin(last), firstEnd = sight.end(first);
  const Softening soften(p);
  const Drops drops(p, chunk, head, sample);
  const QueryRows<kParts> rows(sight, head, sample,
                               first + static_cast<int>(threadIdx.x) % kWarp / 4);
  mma::FirstRows<Size::kChannels, kParts, kIsHeld> queries(q, firstRow);
  mma::FirstRows<Size::kValues, kParts, kIsHeld> gradients(dOut, firstRow);
  const auto ofV = mma::LaneRow::ofColumns<Size::kValues>(v, 0);
  float dq[kParts][Size::kChannels / 8][4] = {};
#pragma unroll 1
  for (int key = begin; key < end; key += kKeys) {
    mma::awaitCopies<0>();
    __syncthreads();
    if (kIsHeld && key == begin)
      queries.hold(), gradients.hold();
    const uint32_t tileOfK = copy.tileOf(key);
    if (key + kKeys < end)
      copy.keys(key + kKeys);
    const bool seesAny = key < warpEnd && key + kKeys > warpBegin;
    float s[kParts][kKeys / 8][4] = {}, dProb[kParts][kKeys / 8][4] = {};
    if (seesAny) {
      mma::addAlongRows<Size::kChannels, kIsF16>(
          s, queries, mma::LaneRow::ofColumns<Size::kChannels>(tileOfK, 0));
      mma::addAlongRows<Size::kValues, kIsF16>(dProb, gradients, ofV);
    }
    __syncthreads();
    if (key + kKeys < end)
      copy.values(key + kKeys);
    if (!seesAny)
      continue;
    if (soften.share != 0.0f)
      soften.capAll(s);
    if (key < lastBegin || key + kKeys > firstEnd)
      rows.hide(sight, key, s);
    soften.share != 0.0f ? rows.template toGradients<true, kDrops>(soften, drops, key, s, dProb)
                         : rows.template toGradients<false, kDrops>(soften, drops, key, s, dProb);
    uint32_t packed[kParts][kKeys / 16][4];
#pragma unroll
    for (int m = 0; m < kParts; ++m)
      mma::pack<kIsF16>(dProb[m], packed[m]);
    mma::addAcrossRows<Size::kChannels, kIsF16>(dq, packed,
                                                mma::LaneRow::ofRows<Size::kChannels>(tileOfK, 0));
  }
  copy.template store<kIsF16>(first, chunk.rows, dq);
}

// ---- gradients of keys and values ----

/// What a block computes: heads of 256 channels have no registers for both sums of a warp's keys.
enum class Sums : uint8_t { Both, Keys, Values };

/// Statistics of a stage's queries, and where their documents begin.
template <int kQueries> struct QueryWords {
  alignas(8) float lse[kQueries], delta[kQueries];
  int docs[kQueries];
};

/// Sizes of a block: its keys, the queries of a stage, and those of them whose scores are in
/// registers at a time.
template <typename Size> struct KeyGradient {
  static constexpr int kRows = kWarps * 16;
  static constexpr int kQueries = Size::kChannels <= 128 ? 64 : Size::kChannels <= 192 ? 32 : 16;
  static constexpr int kAtOnce = std::min(kQueries, 32);
  static constexpr int kStages = 2;
  static constexpr int kBytesOfK = kRows * Size::kChannels * 2;
  static constexpr int kBytesOfV = kRows * Size::kValues * 2;
  static constexpr int kBytesOfQ = kQueries * Size::kChannels * 2;
  static constexpr int kBytesOfDOut = kQueries * Size::kValues * 2;
  static constexpr int kBytesOfStage = kBytesOfQ + kBytesOfDOut + 3 * 4 * kQueries;
  static constexpr int kBytes = kBytesOfK + kBytesOfV + kStages * kBytesOfStage;
  static_assert(kBytes <= kMmaBytesMax);
};

/// The tiles of queries of all heads of a group that see some key of a block's tile, one after the
/// other.
template <int kQueries, int kRows> class QuerySteps {
public:
  /// All threads of the block must call this.
  __device__ QuerySteps(const Params &p, int key, int sample) : p_(&p) {
    const int lastKey = min(key + kRows, p.keys) - 1;
    for (int number = 0; number < p.chunkCount; ++number) {
      Sight sight(p, number, sample);
      int begin = p.causal ? max(key - sight.chunk.position, 0) / kQueries * kQueries : 0;
      begins_[number] = begin, counts_[number] = 0;
      int tiles = (sight.chunk.rows - begin + kQueries - 1) / kQueries;
      for (int i = 0; i < tiles; i += kThreads) { // first keys do not decrease from query to query
        int tile = i + static_cast<int>(threadIdx.x);
        int seen =
            __syncthreads_count(tile < tiles && sight.begin(begin + tile * kQueries) <= lastKey);
        counts_[number] += seen;
        if (seen < kThreads)
          break;
      }
    }
    skipEmpty();
  }
  __device__ bool hasMore() const { return head < p_->perGroup; }
  __device__ int query() const { return begins_[chunk] + tile_ * kQueries; }
  __device__ void next() {
    ++tile_;
    skipEmpty();
  }

  int head = 0, chunk = 0; ///< head of the group

private:
  __device__ void skipEmpty() {
    while (head < p_->perGroup && tile_ >= counts_[chunk]) {
      tile_ = 0;
      if (++chunk == p_->chunkCount)
        chunk = 0, ++head;
      if (p_->chunkCount == 1 ? counts_[0] == 0 : counts_[0] + counts_[1] == 0)
        head = p_->perGroup;
    }
  }

  const Params *p_;
  int begins_[2] = {}, counts_[2] = {}, tile_ = 0;
};

/// Starts the copies of a stage: a tile of queries, its gradients of outputs and its words.
template <typename Size, typename Steps>
__device__ __forceinline__ void copyQueries(const Params &p, const Steps &at, int group, int sample,
                                            uint32_t stage) {
  using Sizes = KeyGradient<Size>;
  constexpr int kQueries = Sizes::kQueries;
  const Chunk &chunk = p.chunks[at.chunk];
  const int64_t row = int64_t{sample} * p.queries + chunk.row;
  mma::copyRows<Size::kChannels, kQueries, kThreads>(
      stage, headOf(p.from[0], row, p.q.at(group, at.head, p.channels)), p.from[0].row, at.query(),
      chunk.rows, p.channels);
  mma::copyRows<Size::kValues, kQueries, kThreads>(
      stage + Sizes::kBytesOfQ, headOf(p.dOut, row, p.o.at(group, at.head, p.values)), p.dOut.row,
      at.query(), chunk.rows, p.values);
  const int i = static_cast<int>(threadIdx.x), query = at.query() + i;
  if (i < kQueries) {
    const uint32_t words = stage + Sizes::kBytesOfQ + Sizes::kBytesOfDOut + 4 * i;
    const bool isThere = query < chunk.rows;
    int64_t of = p.statistics(sample, group * p.perGroup + at.head) + chunk.row + query;
    if (!isThere)
      of = 0;
    mma::copyWord(words, p.lse + of, isThere);
    mma::copyWord(words + 4 * kQueries, p.delta + of, isThere);
    mma::copyWord(words + 8 * kQueries, p.docs + (isThere ? row + query : 0), isThere);
  }
  mma::endCopies();
}

/// Two keys of a lane, 8 rows apart, beside the queries of a part of a stage.
struct KeyRows {
  int row;         ///< the first key
  int stage, from; ///< the stage's first query in its chunk; the part's first query in the stage

  /// Sets the scores of queries that do not see a key to -inf, as of those beyond `lastQuery`.
  template <int kQueries, int kTiles>
  __device__ __forceinline__ void hide(const Sight &sight, const QueryWords<kQueries> &words,
                                       int lastQuery, float (&s)[kTiles][4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int column = from + 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
        const int query = stage + column, key = row + e / 2 * 8;
        const int begin = query <= lastQuery ? sight.beginOf(query, words.docs[column]) : INT32_MAX;
        if (key < begin || (sight.p.causal && key > sight.chunk.position + query))
          s[n][e] = -INFINITY;
      }
  }

  /// `firstKey`: of the warp.
  template <bool kCaps, bool kDrops, int kQueries, int kTiles>
  __device__ __forceinline__ void toGradients(const Softening &soften, const Drops &drops,
                                              int firstKey, const QueryWords<kQueries> &words,
                                              float (&s)[kTiles][4],
                                              float (&dProb)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column = from + 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
      const float2 lse = *reinterpret_cast<const float2 *>(words.lse + column);
      const float2 delta = *reinterpret_cast<const float2 *>(words.delta + column);
      const float x = lse.x * kLog2e, y = lse.y * kLog2e;
      float factors[4];
      if constexpr (kDrops)
        drops.ofKeys(firstKey, stage + from + 8 * n, factors);
      differentiate<kCaps, kDrops>(soften, {x, y, x, y}, {delta.x, delta.y, delta.x, delta.y},
                                   factors, s[n], dProb[n]);
    }
  }
};

/// A warp's sums for 16 keys, and these keys and values as first operands.
template <typename Size, bool kIsF16, bool kDrops, Sums kSums> struct KeySums {
  using Sizes = KeyGradient<Size>;
  static constexpr int kAtOnce = Sizes::kAtOnce;
  static constexpr bool kHasKeys = kSums != Sums::Values, kHasValues = kSums != Sums::Keys;

  int first; ///< the warp's first key
  mma::FirstRows<Size::kChannels, 1, false> keys;
  mma::FirstRows<Size::kValues, 1, false> values;
  float dk[1][kHasKeys ? Size::kChannels / 8 : 1][4] = {};
  float dv[1][kHasValues ? Size::kValues / 8 : 1][4] = {};

  __device__ __forceinline__ KeySums(uint32_t k, uint32_t v, int row, int firstKey)
      : first(firstKey), keys(k, row), values(v, row) {}

  /// Adds what kAtOnce queries of a stage contribute, from query `from` of it on. `stage` is its
  /// first query in the chunk; q and dOut are its tiles.
  __device__ __forceinline__ void add(const Sight &sight, const Drops &drops,
                                      const Softening &soften,
                                      const QueryWords<Sizes::kQueries> &words, int stage, int from,
                                      uint32_t q, uint32_t dOut) {
    const Params &p = sight.p;
    const int query = stage + from, position = sight.chunk.position + query, last = first + 15;
    const int lastQuery = min(query + kAtOnce, sight.chunk.rows) - 1;
    const bool seesAny = lastQuery >= query && sight.beginOf(query, words.docs[from]) <= last &&
                         (!p.causal || sight.chunk.position + lastQuery >= first);
    if (!seesAny)
      return;
    const bool seesAll = sight.beginOf(lastQuery, words.docs[lastQuery - stage]) <= first &&
                         (!p.causal || position >= last) && lastQuery == query + kAtOnce - 1;
    float s[1][kAtOnce / 8][4] = {}, dProb[1][kAtOnce / 8][4] = {};
    mma::addAlongRows<Size::kChannels, kIsF16>(s, keys,
                                               mma::LaneRow::ofColumns<Size::kChannels>(q, from));
    if constexpr (kHasKeys)
      mma::addAlongRows<Size::kValues, kIsF16>(dProb, values,
                                               mma::LaneRow::ofColumns<Size::kValues>(dOut, from));
    if (soften.share != 0.0f)
      soften.capAll(s);
    const KeyRows rows = {first + static_cast<int>(threadIdx.x) % kWarp / 4, stage, from};
    if (!seesAll)
      rows.hide(sight, words, lastQuery, s[0]);
    soften.share != 0.0f
        ? rows.template toGradients<true, kDrops>(soften, drops, first, words, s[0], dProb[0])
        : rows.template toGradients<false, kDrops>(soften, drops, first, words, s[0], dProb[0]);
    uint32_t packed[1][kAtOnce / 16][4];
    if constexpr (kHasValues) {
      mma::pack<kIsF16>(s[0], packed[0]);
      mma::addAcrossRows<Size::kValues, kIsF16>(dv, packed,
                                                mma::LaneRow::ofRows<Size::kValues>(dOut, from));
    }
    if constexpr (kHasKeys) {
      mma::pack<kIsF16>(dProb[0], packed[0]);
      mma::addAcrossRows<Size::kChannels, kIsF16>(dk, packed,
                                                  mma::LaneRow::ofRows<Size::kChannels>(q, from));
    }
  }
};

template <typename Size, bool kIsF16, bool kDrops, Sums kSums>
__global__ void __launch_bounds__(kThreads) attentionMmaKeys(const __grid_constant__ Params p) {
  awaitPrevious();
  using Sizes = KeyGradient<Size>;
  constexpr int kQueries = Sizes::kQueries, kRows = Sizes::kRows;
  constexpr bool kHasKeys = kSums != Sums::Values, kHasValues = kSums != Sums::Keys;
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t k = mma::sharedAddress(memory), v = k + Sizes::kBytesOfK;
  const uint32_t stages = v + Sizes::kBytesOfV;
  const int key = static_cast<int>(blockIdx.x) * kRows, group = static_cast<int>(blockIdx.y);
  const int sample = static_cast<int>(blockIdx.z);
  const int64_t keyRow = int64_t{sample} * p.keys;
  mma::copyRows<Size::kChannels, kRows, kThreads>(
      k, headOf(p.from[1], keyRow, p.k.at(group, 0, p.channels)), p.from[1].row, key, p.keys,
      p.channels);
  if constexpr (kHasKeys)
    mma::copyRows<Size::kValues, kRows, kThreads>(
        v, headOf(p.from[2], keyRow, p.v.at(group, 0, p.values)), p.from[2].row, key, p.keys,
        p.values);
  QuerySteps<kQueries, kRows> at(p, key, sample);
  if (at.hasMore())
    copyQueries<Size>(p, at, group, sample, stages);

  const int firstRow = static_cast<int>(threadIdx.x) / kWarp * 16, first = key + firstRow;
  const Softening soften(p);
  KeySums<Size, kIsF16, kDrops, kSums> sums(k, v, firstRow, first);
  QuerySteps<kQueries, kRows> next = at;
#pragma unroll 1
  for (uint32_t count = 0; at.hasMore(); at = next, ++count) {
    mma::awaitCopies<0>();
    __syncthreads();
    next.next();
    if (next.hasMore())
      copyQueries<Size>(p, next, group, sample,
                        stages + (count + 1) % Sizes::kStages * Sizes::kBytesOfStage);
    const uint32_t inMemory = count % Sizes::kStages * Sizes::kBytesOfStage;
    const uint32_t q = stages + inMemory, dOut = q + Sizes::kBytesOfQ;
    const auto &words = *reinterpret_cast<const QueryWords<kQueries> *>(
        memory + Sizes::kBytesOfK + Sizes::kBytesOfV + inMemory + Sizes::kBytesOfQ +
        Sizes::kBytesOfDOut);
    const Sight sight(p, at.chunk, sample);
    const Drops drops(p, sight.chunk, group * p.perGroup + at.head, sample);
#pragma unroll 1
    for (int from = 0; from < kQueries; from += Sizes::kAtOnce)
      sums.add(sight, drops, soften, words, at.query(), from, q, dOut);
  }
  const int64_t row = keyRow + first;
  if constexpr (kHasKeys)
    storeScaled<kIsF16>(headOf(p.to[1], row, p.k.at(group, 0, p.channels)), p.to[1].row,
                        p.keys - first, p.channels, p.scale, sums.dk[0]);
  if constexpr (kHasValues)
    mma::storeRows<kIsF16>(headOf(p.to[2], row, p.v.at(group, 0, p.values)), p.to[2].row,
                           p.keys - first, p.values, sums.dv[0]);
}

} // namespace
} // namespace heads

void launchMmaAttentionBwd(const Call &call, const AttentionOp &op, float *delta) {
  heads::Operands of(call, op);
  of.p.delta = delta;
  Queue &queue = queueOf(call);
  heads::launchDelta(of, queue);
  heads::forMmaKernels(of, [&]<typename Size, bool kIsF16, bool kDrops>() {
    using heads::Sums, heads::kThreads;
    using KeyGradient = heads::KeyGradient<Size>;
    using QueryGradient = heads::QueryGradient<Size>;
    auto samples = static_cast<unsigned>(of.samples);
    dim3 ofKeys(static_cast<unsigned>(ceilDiv(of.p.keys, KeyGradient::kRows)),
                static_cast<unsigned>(of.p.heads / of.p.perGroup), samples);
    dim3 ofQueries(heads::QueryTile<QueryGradient::kRows>::ofAll(of.p),
                   static_cast<unsigned>(of.p.heads), samples);
    constexpr int kBytes = KeyGradient::kBytes;
    if constexpr (Size::kChannels + Size::kValues <= 320) {
      heads::launchTiles(heads::attentionMmaKeys<Size, kIsF16, kDrops, Sums::Both>, ofKeys,
                         kThreads, kBytes, of.p, queue);
    } else {
      heads::launchTiles(heads::attentionMmaKeys<Size, kIsF16, kDrops, Sums::Keys>, ofKeys,
                         kThreads, kBytes, of.p, queue);
      heads::launchTiles(heads::attentionMmaKeys<Size, kIsF16, kDrops, Sums::Values>, ofKeys,
                         kThreads, kBytes, of.p, queue);
    }
    heads::launchTiles(heads::attentionMmaQueries<Size, kIsF16, kDrops>, ofQueries, kThreads,
                       QueryGradient::kBytes, of.p, queue);
  });
}

} // namespace shardc::kernels::cuda
