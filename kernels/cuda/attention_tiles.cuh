// Shared by the forward and backward kernels of attention on tensor cores: which keys a query sees,
// the layout of heads in rows, and tiles in shared memory. A query sees the keys [begin, end) of
// its sample, as determined by its document, the window, the chunk and causality. Neither bound
// decreases from one query to the next. Hence the keys that a tile of queries sees are one range,
// and so are the queries that see a tile of keys.
#pragma once

#include "kernels/cuda/grouped_tiles.cuh"

namespace shardc::kernels::cuda::heads {

using tiles::kBlockCols; ///< channels in a row of shared memory
using tiles::kGroupRows;
using tiles::kPartBytes; ///< bytes of 16 rows
using tiles::kRowBytes;
using tiles::kThreads;
using tiles::kTileRows; ///< rows of queries or keys of one block
using tiles::RingPosition;
constexpr uint32_t kStepBytes = 32; ///< bytes of 16 channels
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// Offsets in a row: from group to group, and of a group's first head.
struct Columns {
  int ofGroup, first;

  __device__ __forceinline__ int at(int group, int head, int channels) const {
    return group * ofGroup + first + head * channels;
  }
};

/// A result, and the number of elements of one of its rows.
struct Target {
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
  Chunk chunks[2];
  int chunkCount;
  Target to[3]; ///< o, or dq, dk and dv
  Data dOut, out;
  float *lse, *delta;  ///< f32[B, N, queries]
  const int32_t *docs; ///< for each query: the first position of its document
  int queries, keys;   ///< rows of a sample
  int heads, perGroup;
  int window;       ///< keys before its own that a query sees; negative: all
  int chunk;        ///< size of attention chunks in positions; 0: no chunks
  float scale, cap; ///< cap 0: no soft cap
  bool causal, resetMask;

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
    int position = chunk.position + query;
    int first = p.window >= 0 ? max(position - p.window, 0) : 0;
    if (p.chunk > 0)
      first = max(first, position - position % p.chunk);
    return p.resetMask ? max(first, min(max(docs[query], 0), position)) : first;
  }
  __device__ __forceinline__ int end(int query) const {
    return p.causal ? chunk.position + min(query, chunk.rows - 1) + 1 : p.keys;
  }
};

/// The block's tile of queries. The grid's first dimension has one block per tile. Tiles that see
/// most keys come first, so that long blocks do not start last.
struct QueryTile {
  int chunk = 0, query; ///< `query`: first query of the tile in its chunk

  __device__ __forceinline__ explicit QueryTile(const Params &p) {
    int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), first = tilesOf(p.chunks[0].rows);
    if (tile >= first)
      chunk = 1, tile -= first;
    query = tile * kTileRows;
  }
  __host__ __device__ static int tilesOf(int rows) { return (rows + kTileRows - 1) / kTileRows; }
  static unsigned ofAll(const Params &p) {
    int tiles = 0;
    for (int i = 0; i < p.chunkCount; ++i)
      tiles += tilesOf(p.chunks[i].rows);
    return static_cast<unsigned>(tiles);
  }
};

/// Maps of the tensors from which tiles are copied.
struct Maps {
  CUtensorMap q, k, v, dOut;   ///< tiles of 128 rows
  CUtensorMap halfQ, halfDOut; ///< tiles of 64 rows
};

/// A tile of kRows rows of one head in shared memory, as blocks of 64 channels.
template <int kRows, int kChannels> struct TileOf {
  static constexpr uint32_t kBlockBytes = kRows * kRowBytes;
  static constexpr uint32_t kBytes = kChannels / kBlockCols * kBlockBytes;
  static constexpr int kSteps = kChannels / 16;

  /// An operand of the rows from `first` on, with rows along k. step(i) is the offset of channel
  /// 16·i.
  __device__ __forceinline__ static hopper::Factor rows(uint32_t address, int first) {
    return {address + static_cast<uint32_t>(first) * kRowBytes, kBlockBytes};
  }
  __device__ __forceinline__ static uint32_t step(int i) {
    return static_cast<uint32_t>(i / 4) * kBlockBytes + static_cast<uint32_t>(i % 4) * kStepBytes;
  }
  __device__ __forceinline__ static void load(const CUtensorMap &map, uint32_t to, uint32_t barrier,
                                              int column, int row, int sample) {
#pragma unroll
    for (int b = 0; b < kChannels / kBlockCols; ++b)
      hopper::loadTile(&map, to + static_cast<uint32_t>(b) * kBlockBytes, barrier,
                       {column + b * kBlockCols, row, sample});
  }
};

/// sums = a·bᵀ over the channels of a head. Commits one group of products.
template <typename A, typename B, bool kIsF16, int kSums>
__device__ __forceinline__ void multiplyRows(float (&sums)[kSums], const hopper::Factor &a,
                                             const hopper::Factor &b) {
#pragma unroll
  for (int i = 0; i < A::kSteps; ++i)
    hopper::addProductOf<2 * kSums, kIsF16, 0>(sums, a.at(A::step(i)), b.at(B::step(i)), i > 0);
  hopper::endProducts();
}

/// Rounds sums to 16 bits, in the register layout of a first operand.
template <bool kIsF16, int kSums>
__device__ __forceinline__ void pack(const float (&sums)[kSums], uint32_t (&packed)[kSums / 2]) {
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i)
    packed[i] = tiles::packed<kIsF16>(sums[2 * i], sums[2 * i + 1]);
}

/// sums += a·b, with a packed in registers. The registers must not change until the
/// products are complete. Commits one group of products.
template <bool kIsF16, int kSums, int kWords>
__device__ __forceinline__ void addProducts(float (&sums)[kSums], const uint32_t (&a)[kWords],
                                            const hopper::Factor &b) {
  hopper::settle(sums);
  hopper::beginProducts();
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i)
    hopper::addProductFrom<2 * kSums, kIsF16, 1>(sums, a + 4 * i,
                                                 b.at(static_cast<uint32_t>(i) * kPartBytes));
  hopper::endProducts();
}

template <int kStages>
__device__ __forceinline__ uint32_t stageOf(const RingPosition<kStages> &inRing) {
  return static_cast<uint32_t>(inRing.stage());
}

/// Shared-memory address of barrier i.
__device__ __forceinline__ uint32_t barrier(const uint64_t *all, uint32_t i) {
  return hopper::sharedAddress(all) + i * 8;
}

/// Frees a stage of the ring after a warp has read it.
__device__ __forceinline__ void release(uint32_t empty) {
  if (threadIdx.x % kWarp == 0)
    hopper::arrive(empty);
}

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

/// Writes a warpgroup's 64 rows of one head through `memory`, 8 KiB of shared memory that no other
/// warpgroup uses.
template <int kChannels, bool kIsF16>
__device__ __forceinline__ void writeRows(const Target &to, uint8_t *memory, int64_t sampleRow,
                                          int row, int rows, int column,
                                          const float (&sums)[kChannels / 2]) {
  int warp = static_cast<int>(threadIdx.x) % 128 / kWarp;
  row += 16 * warp;
  tiles::TileTarget target = {to.data,
                              memory + warp * 16 * static_cast<int>(kRowBytes),
                              (sampleRow + row) * to.row + column,
                              static_cast<int>(to.row),
                              rows - row,
                              kChannels};
  tiles::Nothing nothing;
  tiles::writeNarrow<kIsF16>(target, sums, tiles::Biases{}, nothing);
}

// ---- on the host ----

/// A call's operands as tensor maps and kernel parameters.
struct Operands {
  Maps maps;
  Params p;
  int samples, channels;
  bool isF16, isThere; ///< isThere: the driver has encoded all tensor maps

  Operands(const Call &call, const AttentionOp &op);
};

/// Calls launch.operator()<channels of a head, whether fp16>().
template <typename Launch> void forHeads(const Operands &of, Launch launch) {
  auto ofChannels = [&]<int kChannels>() {
    of.isF16 ? launch.template operator()<kChannels, true>()
             : launch.template operator()<kChannels, false>();
  };
  of.channels == kBlockCols ? ofChannels.template operator()<kBlockCols>()
                            : ofChannels.template operator()<2 * kBlockCols>();
}

} // namespace shardc::kernels::cuda::heads
