// Shared by all kernels of attention on tensor cores (wgmma: attention_tiles.cuh; mma.sync:
// attention_mma.cuh): which keys a query sees, the layout of heads in rows, the softmax, and a
// call's parameters. A query sees the keys [begin, end) of its sample, as determined by its
// document, the window, the chunk and causality. Neither bound decreases from one query to the
// next. Hence the keys that a tile of queries sees are one range, and so are the queries that see a
// tile of keys.
#pragma once

#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dropout.cuh"

namespace shardc::kernels::cuda::heads {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// Offsets in a row: from group to group, and of a group's first head.
struct Columns {
  int ofGroup, first;

  __device__ __forceinline__ int at(int group, int head, int channels) const {
    return group * ofGroup + first + head * channels;
  }
};

/// An operand or result of heads, and the number of elements of one of its rows.
struct HeadRows {
  Data data;
  int64_t row;
};

/// Queries at consecutive positions: a whole sequence, or a chunk of it.
struct Chunk {
  int row; ///< first row in the sample
  int rows;
  int position; ///< position of the first one in the sequence
};

/// Arguments of the forward and the backward kernels.
struct Params {
  Columns q, k, v, o;
  HeadRows from[3]; ///< q, k and v
  HeadRows to[3];   ///< o, or dq, dk and dv
  HeadRows out, dOut;
  Chunk chunks[2];
  int chunkCount;
  float *lse, *delta;     ///< f32[B, N, queries]
  const int32_t *docs;    ///< for each query: the first position of its document
  const int64_t *samples; ///< for dropout: the number of each sample
  int queries, keys;      ///< rows of a sample
  int heads, perGroup;
  int channels, values; ///< channels of a head's q and k, and of its v
  int window;           ///< keys before its own that a query sees; negative: all
  int chunk;            ///< size of attention chunks in positions; 0: no chunks
  float scale, cap;     ///< cap 0: no soft cap
  bool causal, resetMask;
  uint32_t positions; ///< length of a whole sequence, as dropout numbers its elements
  uint32_t firstHead; ///< index of this rank's first head among the heads of all ranks
  DropoutMask mask;

  __device__ __forceinline__ int64_t statistics(int sample, int head) const {
    return (static_cast<int64_t>(sample) * heads + head) * queries;
  }
};

/// Which keys each query of one chunk of a sample sees.
struct Sight {
  const Params &p;
  const Chunk &chunk;
  const int32_t *docs;

  __device__ __forceinline__ Sight(const Params &params, int number, int sample)
      : p(params), chunk(params.chunks[number]),
        docs(params.docs + static_cast<int64_t>(sample) * params.queries + chunk.row) {}

  /// The first key that a query of the chunk sees, and the end of its keys. For queries beyond the
  /// last one, both return the values of the last one.
  __device__ __forceinline__ int begin(int query) const {
    query = min(query, chunk.rows - 1);
    return beginOf(query, p.resetMask ? docs[query] : 0);
  }
  /// The same for a query of the chunk whose document begins at position `doc`. Attention chunks
  /// count from there.
  __device__ __forceinline__ int beginOf(int query, int doc) const {
    int position = chunk.position + query;
    int first = p.resetMask ? min(max(doc, 0), position) : 0;
    int ofChunk = p.chunk > 0 ? position - (position - first) % p.chunk : 0;
    int ofWindow = p.window >= 0 ? position - p.window : 0;
    return max(first, max(ofChunk, ofWindow));
  }
  __device__ __forceinline__ int end(int query) const {
    return p.causal ? chunk.position + min(query, chunk.rows - 1) + 1 : p.keys;
  }
};

/// The block's tile of kRows queries. The grid's first dimension has one block per tile. Tiles that
/// see most keys come first, so that long blocks do not start last.
template <int kRows> struct QueryTile {
  int chunk = 0, query; ///< `query`: first query of the tile in its chunk

  __device__ __forceinline__ explicit QueryTile(const Params &p) {
    int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), first = tilesOf(p.chunks[0].rows);
    if (tile >= first)
      chunk = 1, tile -= first;
    query = tile * kRows;
  }
  __host__ __device__ static int tilesOf(int rows) { return (rows + kRows - 1) / kRows; }
  static unsigned ofAll(const Params &p) {
    int tiles = 0;
    for (int i = 0; i < p.chunkCount; ++i)
      tiles += tilesOf(p.chunks[i].rows);
    return static_cast<unsigned>(tiles);
  }
};

/// 2^x, approximately. Subnormal numbers are flushed to zero.
__device__ __forceinline__ float exp2Of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// tanh with an error of up to 1e-6. The tanh instruction has only 11 bits.
__device__ __forceinline__ float tanhOf(float x) {
  return 1.0f - __fdividef(2.0f, exp2Of(2.0f * kLog2e * x) + 1.0f);
}

/// Computes probabilities from scores, and the factor by which a soft cap scales their gradients.
struct Softening {
  float factor, share; ///< share 0: no soft cap

  __device__ explicit Softening(const Params &p)
      : factor((p.cap > 0.0f ? p.cap : p.scale) * kLog2e),
        share(p.cap > 0.0f ? p.scale / p.cap : 0.0f) {}
  template <int kScores> __device__ __forceinline__ void cap(float (&scores)[kScores]) const {
    if (share == 0.0f)
      return;
#pragma unroll
    for (float &score : scores)
      score = tanhOf(score * share);
  }
  template <int kParts, int kTiles>
  __device__ __forceinline__ void capAll(float (&scores)[kParts][kTiles][4]) const {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        cap(scores[m][n]);
  }
  /// The probability of a score; lse2 is the query's statistic in powers of two.
  __device__ __forceinline__ float prob(float score, float lse2) const {
    return exp2Of(fmaf(score, factor, -lse2));
  }
  /// The derivative of the soft cap at a score, computed from the score's probability.
  __device__ __forceinline__ float slope(float prob, float lse2) const {
    float ofCap = (__log2f(prob) + lse2) / factor;
    return prob > 0.0f ? 1.0f - ofCap * ofCap : 0.0f;
  }
};

// ---- on the host ----

/// A call's operands as kernel parameters. They are the same for all kernels.
struct Operands {
  Params p;
  int samples;
  bool isF16;

  Operands(const Call &call, const AttentionOp &op);
};

/// Whether the operands of a call are of one 16-bit type, aligned to 16 bytes, and no result
/// accumulates.
bool haveTiles(const Call &call, const AttentionOp &op);

/// Enqueues delta[b, n, s] = sum over channels of do·o.
void launchDelta(const Operands &of, Queue &queue);

} // namespace shardc::kernels::cuda::heads
