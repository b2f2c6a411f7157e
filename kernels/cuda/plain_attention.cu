// o[b,s,n,:] = sum over visible keys j of dropout(P[j])·v[b,j,g,:], P = softmax(scale·q·k_j);
// lse[b,n,s]. Backward, with delta = do·o, P = exp(scale·q·kᵀ - lse), M the factors of dropout and
// dP = M·(do·vᵀ):
//   dv = (M·P)ᵀ·do, dS = scale·P·(dP - delta), dq = dS·k, dk = dSᵀ·q, added over a group's heads.
// With a soft cap c, a score x becomes c·tanh(x/c), and dS has the factor 1 - tanh(x/c)².
// q[B,S,N,D], k[B,S,G,D], v[B,S,G,E], o[B,S,N·E] are f32, bf16 or f16 each, lse is f32. Online
// softmax over tiles of 32 keys. All arithmetic is fp32 on the CUDA cores; sums have a fixed order,
// without atomics: one kernel computes dq by tiles of queries, another computes dk and dv by tiles
// of keys. With slices of a sequence, the numbers of queries and keys differ, each query and key
// has a position, and tiles without visible pairs are skipped. A query that sees no key has o = 0
// and lse = -inf.
//
// Mapping: a block of 8 warps holds 32 rows of one head. A warp has 4 rows; a lane has one column
// of a tile's scores, then every 32nd channel of the results. Limited by fp32 arithmetic and shared
// memory. The kernels are meant to be correct for every type and mask rather than fast: 6.8 TFLOP/s
// forward and 4.4 backward on an H200, 2026-11, where cuDNN reaches 531 and 437.
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dropout.cuh"
#include "kernels/host/Slices.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr int kRows = kTile / kWarps; ///< rows per warp
// Sizes of the kernels for few queries.
constexpr int kFewQueries = 4;
constexpr int kKeysAtOnce = 8, kPartsMax = 256;

/// Number of keys that a warp reads for few queries. `rows`: of all heads. They have as many blocks
/// as keep a GPU busy, at most kPartsMax each.
int keysOfWarp(int64_t keys, int64_t rows) {
  constexpr int64_t kBlocks = 2048;
  const int64_t parts = std::clamp<int64_t>(kBlocks / rows, 1, kPartsMax);
  return static_cast<int>(ceilDiv(ceilDiv(keys, parts * kWarps), kKeysAtOnce) * kKeysAtOnce);
}
int64_t blocksOfKeys(int64_t keys, int64_t rows) {
  return ceilDiv(keys, kWarps * keysOfWarp(keys, rows));
}

struct Attention {
  Data q, k, v, o, dOut, dq, dk, dv;
  float *lse, *delta;
  const int32_t *docs, *keyDocs, *queryAt, *keyAt; ///< the latter three are used for slices only
  const int64_t *samples;
  int queries, keys, heads, groups;
  int channels, values; ///< channels of a head's q and k, and of its v
  uint32_t positions;   ///< length of a whole sequence, as dropout numbers its elements
  uint32_t firstHead;   ///< index of this rank's first head among the heads of all ranks
  int window;           ///< keys before its own that a query sees; negative: all
  int chunk;            ///< size of attention chunks in positions; 0: no chunks
  float scale;
  float cap; ///< soft cap of scaled scores; 0: none
  bool causal, resetMask;
  DropoutMask mask;
};

struct Span {
  int begin, end;
};

/// Which keys each query of a sample may see, as the host's kernels define it.
template <bool kParts> struct Sight {
  const Attention &p;
  const int32_t *docs, *keyDocs = nullptr, *queryAt = nullptr, *keyAt = nullptr;

  __device__ __forceinline__ Sight(const Attention &attention, int sample)
      : p(attention), docs(p.docs + static_cast<int64_t>(sample) * p.queries) {
    if constexpr (kParts) {
      keyDocs = p.keyDocs + static_cast<int64_t>(sample) * p.keys;
      queryAt = p.queryAt + static_cast<int64_t>(sample) * p.queries;
      keyAt = p.keyAt + static_cast<int64_t>(sample) * p.keys;
    }
  }

  /// A range that contains all keys that a query sees. Never empty.
  __device__ __forceinline__ Span span(int query) const {
    if constexpr (kParts)
      return {0, p.keys};
    const int first = p.resetMask ? min(max(docs[query], 0), query) : 0;
    Span span = {first, p.causal ? query + 1 : p.keys};
    if (p.window >= 0)
      span.begin = max(span.begin, query - p.window);
    if (p.chunk > 0) // chunks count from the beginning of the document
      span.begin = max(span.begin, query - (query - first) % p.chunk);
    if (p.resetMask && !p.causal)
      for (span.end = query + 1; span.end < p.keys && docs[span.end] == docs[query];)
        ++span.end;
    return span;
  }

  /// Whether a query sees a key of its span.
  __device__ __forceinline__ bool sees(int query, int key) const {
    if constexpr (!kParts)
      return true;
    int back = queryAt[query] - keyAt[key];
    return (!p.causal || back >= 0) && (p.window < 0 || back <= p.window) &&
           (p.chunk == 0 || back <= (queryAt[query] - (p.resetMask ? docs[query] : 0)) % p.chunk) &&
           (!p.resetMask || docs[query] == keyDocs[key]);
  }

  /// Row of an element in dropout's mask; dropoutColumn() returns the column.
  __device__ __forceinline__ uint32_t dropoutRow(int head, int query) const {
    return (p.firstHead + static_cast<uint32_t>(head)) * p.positions +
           static_cast<uint32_t>(kParts ? queryAt[query] : query);
  }
  __device__ __forceinline__ uint32_t dropoutColumn(int key) const {
    return static_cast<uint32_t>(kParts ? keyAt[key] : key);
  }
};

/// A barrier after the use of tiles in shared memory. Returns false if the next tiles can be
/// skipped, because no thread sees any of their pairs.
template <bool kParts> __device__ __forceinline__ bool nextTiles(bool seesAny) {
  if constexpr (kParts)
    return __syncthreads_or(seesAny) != 0;
  __syncthreads();
  return true;
}

/// The address and stride of one head of a sample's queries or keys.
struct Side {
  int sample, rows, heads, head;

  __device__ __forceinline__ int64_t offset(int row, int channels) const {
    return ((static_cast<int64_t>(sample) * rows + row) * heads + head) * channels;
  }
};

/// Loads rows [first, first + 32) of one head into shared memory, `pitch` floats apart. Rows past
/// the end become zero.
__device__ __forceinline__ void loadTile(const Data &x, const Side &side, int channels, int first,
                                         float *tile, int pitch) {
  for (int at = static_cast<int>(threadIdx.x); at < kTile * channels;
       at += static_cast<int>(blockDim.x)) {
    int row = at / channels, d = at % channels, position = first + row;
    tile[row * pitch + d] =
        position < side.rows ? element(x, side.offset(position, channels) + d) : 0.0f;
  }
}

/// tanh of a scaled score divided by the soft cap.
__device__ __forceinline__ float shareOfCap(const Attention &p, float dot) {
  return tanhf(dot * p.scale / p.cap);
}

/// dots[r] = a[row r of the warp]·b[lane].
__device__ __forceinline__ void dotRows(const float *a, const float *b, int pitch, int channels,
                                        int warp, int lane, float (&dots)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    dots[r] = 0.0f;
  for (int d = 0; d < channels; ++d) {
    float other = b[lane * pitch + d];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      dots[r] += a[(warp + r * kWarps) * pitch + d] * other;
  }
}

/// sums[r][c] += sum over j of a[r] of lane j, times b[j][lane + 32·c].
template <int kColumns>
__device__ __forceinline__ void addProducts(const float (&a)[kRows], const float *b, int pitch,
                                            int channels, int lane,
                                            float (&sums)[kRows][kColumns]) {
  for (int j = 0; j < kTile; ++j) {
    float mine[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      mine[r] = __shfl_sync(0xffffffffu, a[r], j);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      int d = lane + c * kWarp;
      float value = d < channels ? b[j * pitch + d] : 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        sums[r][c] += mine[r] * value;
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void writeRows(const Data &x, const Side &side, int channels, int first,
                                          int warp, int lane,
                                          const float (&rows)[kRows][kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int position = first + warp + r * kWarps;
    if (position >= side.rows)
      continue;
    int64_t offset = side.offset(position, channels);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (lane + c * kWarp < channels)
        setElement(x, offset + lane + c * kWarp, rows[r][c]);
  }
}

/// The range of keys that contains the spans of all queries of the block.
template <bool kParts>
__device__ __forceinline__ Span spanOfTile(const Sight<kParts> &sight, int first, int lane) {
  Span span = sight.span(min(first + lane, sight.p.queries - 1));
  return {__reduce_min_sync(0xffffffffu, span.begin), __reduce_max_sync(0xffffffffu, span.end)};
}

/// A block has one head of one sample and kTile queries; a warp has kRows of them, a lane one key
/// of the current tile. Softmax is computed online: when a tile has a larger maximum, the sums so
/// far are scaled down.
template <int kColumns, bool kParts>
__global__ void __launch_bounds__(kWarps *kWarp) attentionForward(const Attention p) {
  awaitPrevious();
  extern __shared__ float shared[];
  int pitch = p.channels + 1, valuePitch = p.values + 1, lane = threadIdx.x % kWarp,
      warp = threadIdx.x / kWarp;
  float *q = shared, *k = q + kTile * pitch, *v = k + kTile * pitch;
  int first = static_cast<int>(blockIdx.x) * kTile, head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z), group = head / (p.heads / p.groups);
  Side queries = {sample, p.queries, p.heads, head}, keys = {sample, p.keys, p.groups, group};
  Sight<kParts> sight(p, sample);
  loadTile(p.q, queries, p.channels, first, q, pitch);
  Span spans[kRows], all = spanOfTile(sight, first, lane);
  float largest[kRows], total[kRows], sums[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    spans[r] = sight.span(min(first + warp + r * kWarps, p.queries - 1));
    largest[r] = -INFINITY, total[r] = 0.0f;
  }
  for (int key0 = all.begin / kTile * kTile; key0 < all.end; key0 += kTile) {
    bool seen[kRows], seesAny = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int key = key0 + lane, query = min(first + warp + r * kWarps, p.queries - 1);
      seen[r] = key >= spans[r].begin && key < spans[r].end && sight.sees(query, key);
      seesAny |= seen[r];
    }
    if (!nextTiles<kParts>(seesAny))
      continue;
    loadTile(p.k, keys, p.channels, key0, k, pitch);
    loadTile(p.v, keys, p.values, key0, v, valuePitch);
    __syncthreads();
    float scores[kRows];
    dotRows(q, k, pitch, p.channels, warp, lane, scores);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int key = key0 + lane, query = min(first + warp + r * kWarps, p.queries - 1);
      float score = !seen[r]       ? -INFINITY
                    : p.cap > 0.0f ? p.cap * shareOfCap(p, scores[r])
                                   : scores[r] * p.scale;
      float newLargest = fmaxf(largest[r], warpMax(score));
      // Tiles before the first visible key change nothing.
      float shrink = newLargest == -INFINITY ? 1.0f : __expf(largest[r] - newLargest);
      float prob = seen[r] ? __expf(score - newLargest) : 0.0f;
      total[r] = total[r] * shrink + warpSum(prob);
      largest[r] = newLargest;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        sums[r][c] *= shrink;
      if (p.mask.threshold > 0 && seen[r])
        prob *= p.mask.factor(p.samples[sample], sight.dropoutRow(head, query),
                              sight.dropoutColumn(key));
      scores[r] = prob;
    }
    addProducts(scores, v, valuePitch, p.values, lane, sums);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int query = first + warp + r * kWarps;
    bool seesNone = kParts && largest[r] == -INFINITY;
    if (lane == 0 && query < p.queries)
      p.lse[(static_cast<int64_t>(sample) * p.heads + head) * p.queries + query] =
          seesNone ? -INFINITY : largest[r] + logf(total[r]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      sums[r][c] /= seesNone ? 1.0f : total[r];
  }
  writeRows(p.o, queries, p.values, first, warp, lane, sums);
}

/// Adds parts of a row of attention, each relative to its own largest score. The block calls
/// setStatistics(largest, sum of exponentials) once and setValue(d, value, sum) for each channel.
template <typename Top, typename Total, typename Value, typename SetStatistics, typename SetValue>
__device__ __forceinline__ void joinParts(int parts, Top topOf, Total totalOf, Value valueOf,
                                          int values, SetStatistics setStatistics,
                                          SetValue setValue) {
  float top = -INFINITY, total = 0.0f;
  for (int part = 0; part < parts; ++part)
    top = fmaxf(top, topOf(part));
  auto share = [&](int part) { return top == -INFINITY ? 0.0f : __expf(topOf(part) - top); };
  for (int part = 0; part < parts; ++part)
    total += share(part) * totalOf(part);
  if (threadIdx.x == 0)
    setStatistics(top, total);
  for (int d = static_cast<int>(threadIdx.x); d < values; d += static_cast<int>(blockDim.x)) {
    float value = 0.0f;
    for (int part = 0; part < parts; ++part)
      value += share(part) * valueOf(part, d);
    setValue(d, value, total);
  }
}

/// An element of data whose type the mode says, without a branch by type.
template <Mode M> __device__ __forceinline__ float elementOf(const Data &d, int64_t i) {
  if constexpr (M == Mode::Bf16)
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(d.p)[i]);
  else if constexpr (M == Mode::F16)
    return __half2float(static_cast<const __half *>(d.p)[i]);
  else
    return element(d, i);
}

/// Adds what a query reads from some keys to `sums`, and their exponentials to `total`; both are
/// divided by that of `top`. `scores` are the lanes' parts of products; `seen` has a bit for each.
template <int kColumns>
__device__ __forceinline__ void addKeys(const Attention &p, unsigned seen,
                                        float (&scores)[kKeysAtOnce],
                                        const float (&values)[kKeysAtOnce][kColumns], float &top,
                                        float &total, float (&sums)[kColumns]) {
  float newTop = top;
#pragma unroll
  for (int j = 0; j < kKeysAtOnce; ++j) {
    float dot = warpSum(scores[j]);
    scores[j] = (seen >> j & 1) == 0 ? -INFINITY
                : p.cap > 0.0f       ? p.cap * shareOfCap(p, dot)
                                     : dot * p.scale;
    newTop = fmaxf(newTop, scores[j]);
  }
  if (newTop == -INFINITY)
    return;
  float shrink = __expf(top - newTop);
  top = newTop, total *= shrink;
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    sums[c] *= shrink;
#pragma unroll
  for (int j = 0; j < kKeysAtOnce; ++j) {
    float prob = __expf(scores[j] - newTop);
    total += prob;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      sums[c] += prob * values[j][c];
  }
}

/// Attention of few queries, such as that of the last token of a text: a block computes what one
/// query of kHeads heads, which have the same keys, reads from a range of keys, by warps with
/// `keysOfWarp` keys each. Lanes have every 32nd channel. Writes the largest score, the sum of the
/// exponentials, and the unscaled row of the result to `partial`[sample, query, head, block].
template <Mode M, int kColumns, int kHeads>
__global__ void __launch_bounds__(kWarps *kWarp)
    attendFew(const Attention p, int keysOfWarp, float *partial) {
  awaitPrevious();
  __shared__ float tops[kHeads][kWarps], totals[kHeads][kWarps],
      rows[kHeads][kWarps][kColumns * kWarp];
  int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int head = static_cast<int>(blockIdx.y) * kHeads, row = static_cast<int>(blockIdx.z);
  int sample = row / p.queries, query = row % p.queries;
  Side keys = {sample, p.keys, p.groups, head / (p.heads / p.groups)};
  Sight<true> sight(p, sample);
  float q[kHeads][kColumns], sums[kHeads][kColumns] = {}, top[kHeads], total[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Side queries = {sample, p.queries, p.heads, head + h};
    top[h] = -INFINITY;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      int d = lane + c * kWarp;
      q[h][c] = d < p.channels ? element(p.q, queries.offset(query, p.channels) + d) : 0.0f;
    }
  }
  int begin = (static_cast<int>(blockIdx.x) * kWarps + warp) * keysOfWarp;
  int end = min(begin + keysOfWarp, p.keys);
  for (int key0 = begin; key0 < end; key0 += kKeysAtOnce) {
    bool seesOwn = key0 + lane < end && sight.sees(query, key0 + lane);
    unsigned seen = __ballot_sync(0xffffffffu, seesOwn);
    if (seen == 0)
      continue;
    float scores[kHeads][kKeysAtOnce] = {}, values[kKeysAtOnce][kColumns];
    // Channels past the last one are read as the last one, to load all without a branch.
#pragma unroll
    for (int at = 0; at < kKeysAtOnce * kColumns; ++at) {
      int j = at / kColumns, key = min(key0 + j, end - 1), d = lane + at % kColumns * kWarp;
      int64_t ofKey = keys.offset(key, p.channels), ofValue = keys.offset(key, p.values);
      float factor = elementOf<M>(p.k, ofKey + min(d, p.channels - 1));
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
        scores[h][j] += q[h][at % kColumns] * factor;
      values[j][at % kColumns] = elementOf<M>(p.v, ofValue + min(d, p.values - 1));
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      addKeys(p, seen, scores[h], values, top[h], total[h], sums[h]);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      rows[h][warp][lane + c * kWarp] = sums[h][c];
    if (lane == 0)
      tops[h][warp] = top[h], totals[h][warp] = total[h];
  }
  __syncthreads();
  for (int h = 0; h < kHeads; ++h) {
    float *to =
        partial + ((static_cast<int64_t>(row) * p.heads + head + h) * gridDim.x + blockIdx.x) *
                      (p.values + 2);
    joinParts(
        kWarps, [&](int part) { return tops[h][part]; }, [&](int part) { return totals[h][part]; },
        [&](int part, int d) { return rows[h][part][d]; }, p.values,
        [&](float all, float sum) { to[0] = all, to[1] = sum; },
        [&](int d, float value, float) { to[2 + d] = value; });
  }
}

/// Joins what the blocks of attendFew have computed for each query and head.
__global__ void __launch_bounds__(kWarps *kWarp)
    joinFew(const Attention p, const float *partial, int blocks) {
  awaitPrevious();
  int head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  int sample = row / p.queries, query = row % p.queries, size = p.values + 2;
  const float *from = partial + (static_cast<int64_t>(row) * p.heads + head) * blocks * size;
  int64_t at = Side{sample, p.queries, p.heads, head}.offset(query, p.values);
  float *lse = p.lse + (static_cast<int64_t>(sample) * p.heads + head) * p.queries + query;
  joinParts(
      blocks, [&](int part) { return from[part * size]; },
      [&](int part) { return from[part * size + 1]; },
      [&](int part, int d) { return from[part * size + 2 + d]; }, p.values,
      [&](float top, float total) { *lse = total > 0.0f ? top + logf(total) : -INFINITY; },
      [&](int d, float value, float total) {
        setElement(p.o, at + d, total > 0.0f ? value / total : 0.0f);
      });
}

/// delta[b,n,s] = sum over channels of do·o, with one warp per row.
__global__ void __launch_bounds__(256) rowProducts(const Attention p, int64_t rows) {
  awaitPrevious();
  int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  int lane = threadIdx.x % kWarp;
  if (row >= rows)
    return;
  float sum = 0;
  for (int d = lane; d < p.values; d += kWarp)
    sum += element(p.dOut, row * p.values + d) * element(p.o, row * p.values + d);
  sum = warpSum(sum);
  int64_t head = row % p.heads, position = row / p.heads % p.queries;
  int64_t sample = row / p.heads / p.queries;
  if (lane == 0)
    p.delta[(sample * p.heads + head) * p.queries + position] = sum;
}

/// For a query and a key: the probability after dropout, and the gradient of the scaled score.
struct Element {
  float prob, dScore;
};

template <bool kParts>
__device__ __forceinline__ Element differentiate(const Sight<kParts> &sight, float score,
                                                 float dProb, float lse, float delta, int sample,
                                                 int head, int query, int key) {
  const Attention &p = sight.p;
  float share = p.cap > 0.0f ? shareOfCap(p, score) : 0.0f;
  float prob = __expf((p.cap > 0.0f ? p.cap * share : score * p.scale) - lse);
  float factor = p.mask.threshold > 0
                     ? p.mask.factor(p.samples[sample], sight.dropoutRow(head, query),
                                     sight.dropoutColumn(key))
                     : 1.0f;
  return {prob * factor, p.scale * prob * (dProb * factor - delta) * (1.0f - share * share)};
}

/// dq: a block has kTile queries and goes through the keys that they see.
template <int kColumns, bool kParts>
__global__ void __launch_bounds__(kWarps *kWarp) attentionBwdQueries(const Attention p) {
  awaitPrevious();
  extern __shared__ float shared[];
  int pitch = p.channels + 1, valuePitch = p.values + 1, lane = threadIdx.x % kWarp,
      warp = threadIdx.x / kWarp;
  float *q = shared, *k = q + kTile * pitch, *dOut = k + kTile * pitch;
  float *v = dOut + kTile * valuePitch;
  int first = static_cast<int>(blockIdx.x) * kTile, head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z), group = head / (p.heads / p.groups);
  Side queries = {sample, p.queries, p.heads, head}, keys = {sample, p.keys, p.groups, group};
  Sight<kParts> sight(p, sample);
  int64_t statistics = (static_cast<int64_t>(sample) * p.heads + head) * p.queries;
  loadTile(p.q, queries, p.channels, first, q, pitch);
  loadTile(p.dOut, queries, p.values, first, dOut, valuePitch);
  Span spans[kRows], all = spanOfTile(sight, first, lane);
  float lse[kRows], delta[kRows], sums[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int query = min(first + warp + r * kWarps, p.queries - 1);
    spans[r] = sight.span(query);
    lse[r] = p.lse[statistics + query], delta[r] = p.delta[statistics + query];
  }
  for (int key0 = all.begin / kTile * kTile; key0 < all.end; key0 += kTile) {
    bool seen[kRows], seesAny = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int key = key0 + lane, query = first + warp + r * kWarps;
      seen[r] = key >= spans[r].begin && key < spans[r].end && query < p.queries &&
                sight.sees(query, key);
      seesAny |= seen[r];
    }
    // No query of the block sees a key of this tile.
    if (!nextTiles<kParts>(seesAny))
      continue;
    loadTile(p.k, keys, p.channels, key0, k, pitch);
    loadTile(p.v, keys, p.values, key0, v, valuePitch);
    __syncthreads();
    float scores[kRows], dProbs[kRows];
    dotRows(q, k, pitch, p.channels, warp, lane, scores);
    dotRows(dOut, v, valuePitch, p.values, warp, lane, dProbs);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int key = key0 + lane, query = first + warp + r * kWarps;
      scores[r] = seen[r] ? differentiate(sight, scores[r], dProbs[r], lse[r], delta[r], sample,
                                          head, query, key)
                                .dScore
                          : 0.0f;
    }
    addProducts(scores, k, pitch, p.channels, lane, sums);
  }
  writeRows(p.dq, queries, p.channels, first, warp, lane, sums);
}

/// dk and dv: a block has kTile keys of one group and goes through all query heads of the group and
/// the queries that may see these keys.
template <int kColumns, bool kParts>
__global__ void __launch_bounds__(kWarps *kWarp) attentionBwdKeys(const Attention p) {
  awaitPrevious();
  extern __shared__ float shared[];
  int pitch = p.channels + 1, valuePitch = p.values + 1, lane = threadIdx.x % kWarp,
      warp = threadIdx.x / kWarp;
  float *k = shared, *q = k + kTile * pitch, *v = q + kTile * pitch;
  float *dOut = v + kTile * valuePitch;
  int first = static_cast<int>(blockIdx.x) * kTile, group = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z), perGroup = p.heads / p.groups;
  Side keys = {sample, p.keys, p.groups, group};
  Sight<kParts> sight(p, sample);
  loadTile(p.k, keys, p.channels, first, k, pitch);
  loadTile(p.v, keys, p.values, first, v, valuePitch);
  float dk[kRows][kColumns] = {}, dv[kRows][kColumns] = {};
  // Range of the queries that may see a key of the tile.
  int begin = p.causal && !kParts ? first : 0;
  int end = p.window < 0 || kParts ? p.queries : min(p.queries, first + kTile + p.window);
  if (p.chunk > 0 && !kParts) // a query sees fewer than that many keys before its own
    end = min(end, first + kTile - 1 + p.chunk);
  for (int head = group * perGroup; head < (group + 1) * perGroup; ++head) {
    Side queries = {sample, p.queries, p.heads, head};
    int64_t statistics = (static_cast<int64_t>(sample) * p.heads + head) * p.queries;
    for (int query0 = begin; query0 < end; query0 += kTile) {
      int query = query0 + lane;
      Span span = {0, 0};
      float lse = 0, delta = 0;
      if (query < p.queries) {
        span = sight.span(query);
        lse = p.lse[statistics + query], delta = p.delta[statistics + query];
      }
      bool seen[kRows], seesAny = false;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        int key = first + warp + r * kWarps;
        seen[r] = key >= span.begin && key < span.end && sight.sees(query, key);
        seesAny |= seen[r];
      }
      if (!nextTiles<kParts>(seesAny))
        continue;
      loadTile(p.q, queries, p.channels, query0, q, pitch);
      loadTile(p.dOut, queries, p.values, query0, dOut, valuePitch);
      __syncthreads();
      float scores[kRows], dProbs[kRows];
      dotRows(k, q, pitch, p.channels, warp, lane, scores);
      dotRows(v, dOut, valuePitch, p.values, warp, lane, dProbs);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        int key = first + warp + r * kWarps;
        Element e = {0.0f, 0.0f};
        if (seen[r])
          e = differentiate(sight, scores[r], dProbs[r], lse, delta, sample, head, query, key);
        scores[r] = e.prob, dProbs[r] = e.dScore;
      }
      addProducts(scores, dOut, valuePitch, p.values, lane, dv);
      addProducts(dProbs, q, pitch, p.channels, lane, dk);
    }
  }
  writeRows(p.dk, keys, p.channels, first, warp, lane, dk);
  writeRows(p.dv, keys, p.values, first, warp, lane, dv);
}

/// Describes the attention of a call. `queries` is the index of the operand q, followed by k and v.
/// `words` is the index of the documents of a whole sequence, or, if isPart, of the positions of
/// queries and keys and then their documents. The samples follow.
Attention describe(const Call &call, int queries, int words, bool isPart) {
  const Tensor &q = call.in[queries], &k = call.in[queries + 1];
  auto wordsOf = [&](int operand) { return static_cast<const int32_t *>(call.in[operand].data); };
  Attention p = {};
  p.q = dataOf(q), p.k = dataOf(k), p.v = dataOf(call.in[queries + 2]);
  p.queries = static_cast<int>(q.shape[1]), p.keys = static_cast<int>(k.shape[1]);
  p.heads = static_cast<int>(q.shape[2]);
  p.groups = static_cast<int>(k.shape[2]), p.channels = static_cast<int>(q.shape[3]);
  p.values = static_cast<int>(call.in[queries + 2].shape[3]);
  if (isPart) {
    p.queryAt = wordsOf(words), p.keyAt = wordsOf(words + 1);
    p.docs = wordsOf(words + 2), p.keyDocs = wordsOf(words + 3);
  } else {
    p.docs = wordsOf(words);
  }
  p.samples = static_cast<const int64_t *>(call.in[isPart ? words + 4 : words + 1].data);
  p.positions = static_cast<uint32_t>(isPart ? call.attrs.positions : q.shape[1]);
  p.firstHead = static_cast<uint32_t>(host::Slices::headPart(call) * q.shape[2]);
  p.scale = static_cast<float>(call.attrs.scale);
  p.cap = static_cast<float>(call.attrs.soft_cap);
  p.causal = call.attrs.causal, p.resetMask = call.attrs.reset_mask;
  p.window = static_cast<int>(std::clamp<int64_t>(call.attrs.window, -1, INT32_MAX / 2));
  p.chunk = static_cast<int>(std::min<int64_t>(call.attrs.chunk, INT32_MAX / 2));
  p.mask = dropoutMask(call.attrs);
  return p;
}

/// Calls launch.operator()<n, isPart>(), where 32·n is the number of channels of the wider operand,
/// rounded up to a power of two.
template <typename Launch> void forColumns(const Attention &p, bool isPart, Launch launch) {
  int channels = std::max(p.channels, p.values);
  auto of = [&]<int kColumns>() {
    isPart ? launch.template operator()<kColumns, true>()
           : launch.template operator()<kColumns, false>();
  };
  if (channels <= 2 * kWarp)
    of.template operator()<2>();
  else if (channels <= 4 * kWarp)
    of.template operator()<4>();
  else
    of.template operator()<8>();
}

/// Launches with two tiles of q's and k's width in shared memory, and `valueTiles` tiles of v's
/// width.
template <typename Kernel>
void launchTiles(Kernel kernel, const Attention &p, int rows, int heads, int64_t samples,
                 int valueTiles, Queue &queue) {
  int columns = 2 * (p.channels + 1) + valueTiles * (p.values + 1);
  int shared = kTile * columns * static_cast<int>(sizeof(float));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  dim3 grid(static_cast<unsigned>(ceilDiv(rows, kTile)), static_cast<unsigned>(heads),
            static_cast<unsigned>(samples));
  launchKernel(kernel, grid, kWarps * kWarp, static_cast<size_t>(shared), queue, p);
}

} // namespace

int ordinaryCode() { return ptxVersionOf(attentionForward<2, false>); }

int64_t plainAttentionScratch(const Call &call) {
  const Tensor &q = call.in[0], &k = call.in[1], &v = call.in[2];
  const int64_t rows = q.shape[0] * q.shape[1] * q.shape[2];
  return q.shape[1] > kFewQueries || call.attrs.p > 0
             ? 0
             : rows * blocksOfKeys(k.shape[1], rows) * (v.shape[3] + 2);
}

void launchPlainAttention(const Call &call, bool isPart, float *scratch) {
  Attention p = describe(call, 0, 3, isPart);
  p.o = dataOf(call.out[0]);
  p.lse = static_cast<float *>(call.out[1].data);
  if (scratch) {
    auto rows = static_cast<unsigned>(call.in[0].shape[0] * p.queries);
    auto heads = static_cast<unsigned>(p.heads);
    auto blocks = static_cast<unsigned>(blocksOfKeys(p.keys, int64_t{rows} * heads));
    const int keys = keysOfWarp(p.keys, int64_t{rows} * heads);
    // Blocks of heads with the same keys read these once, where there are blocks for all
    // processors.
    constexpr int kTogether = 4, kBlocksMin = 256;
    const bool isTogether = p.heads / p.groups % kTogether == 0 &&
                            int64_t{blocks} * heads / kTogether * rows >= kBlocksMin;
    auto attendAs = [&]<Mode M>() {
      forColumns(p, true, [&]<int kColumns, bool kParts>() {
        auto launch = [&]<int kHeads>() {
          launchKernel(attendFew<M, kColumns, kHeads>, dim3(blocks, heads / kHeads, rows),
                       kWarps * kWarp, 0, queueOf(call), p, keys, scratch);
        };
        if (kColumns <= 4 && isTogether)
          launch.template operator()<kColumns <= 4 ? kTogether : 1>();
        else
          launch.template operator()<1>();
      });
    };
    const Mode mode = modeOf({&call.in[0], &call.in[1], &call.in[2]}, 0);
    mode == Mode::Bf16  ? attendAs.template operator()<Mode::Bf16>()
    : mode == Mode::F16 ? attendAs.template operator()<Mode::F16>()
                        : attendAs.template operator()<Mode::Scalar>();
    return launchKernel(joinFew, dim3(heads, rows), kWarps * kWarp, 0, queueOf(call), p,
                        static_cast<const float *>(scratch), static_cast<int>(blocks));
  }
  forColumns(p, isPart, [&]<int kColumns, bool kParts>() {
    launchTiles(attentionForward<kColumns, kParts>, p, p.queries, p.heads, call.in[0].shape[0], 1,
                queueOf(call));
  });
}

void launchPlainAttentionBwd(const Call &call, float *delta, bool isPart) {
  Attention p = describe(call, 1, 6, isPart);
  p.dOut = dataOf(call.in[0]), p.o = dataOf(call.in[4]);
  p.lse = static_cast<float *>(call.in[5].data);
  p.dq = dataOf(call.out[0]), p.dk = dataOf(call.out[1]), p.dv = dataOf(call.out[2]);
  p.delta = delta;
  int64_t samples = call.in[1].shape[0], rows = samples * p.queries * p.heads;
  auto blocks = static_cast<unsigned>(ceilDiv(rows, 256 / kWarp));
  launchKernel(rowProducts, blocks, 256, 0, queueOf(call), p, rows);
  forColumns(p, isPart, [&]<int kColumns, bool kParts>() {
    launchTiles(attentionBwdKeys<kColumns, kParts>, p, p.keys, p.groups, samples, 2, queueOf(call));
    launchTiles(attentionBwdQueries<kColumns, kParts>, p, p.queries, p.heads, samples, 2,
                queueOf(call));
  });
}

} // namespace shardc::kernels::cuda
