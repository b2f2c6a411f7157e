// embedding: x[t,:] = table[ids[t],:]. A row whose id is not in the table becomes NaN, so that bad
// data stop training. embedding_bwd: dtable[v,:] (+)= sum of dx[t,:] over the rows t with ids[t] =
// v. Rows with ids outside the table add nothing. Tables and rows are f32, bf16 or f16 each, ids
// are i32. In a group of ranks, the operand is this member's part of the table; all parts have
// equal numbers of rows. embedding_shard and embedding_shard_bwd do the same for a table whose rows
// lie in a flat shard. Rows of other shards become -0, so that a sum over all shards is bitwise
// equal to the row. The gradient is the sum times `scale`, and 0 where the shard has no row of the
// table.
//
// Mapping, forward: one block per row, one chunk of 8 elements per thread. Backward: a stable radix
// sort of (id, row) pairs brings rows of one id together, in row order. Rows whose ids are not in
// this table come last and are not read. A block adds a tile of 32 sorted rows. Sums of ids that
// begin and end in the tile are written to the table. For other ids, each tile writes an fp32
// partial sum, and the block of the tile in which the id begins adds these in order. Hence a
// frequent id uses as many blocks as it has tiles, without atomics, and the result is
// deterministic.
//
// Limited by memory. H200, 2026-11, of a copy's 4.24 TB/s: 3.0 forward for rows read and written,
// 3.2 backward for the table written, including the sort (4,096 rows of 4,096; 1.6 for GPT-2's
// table).
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Sort.h"
#include "kernels/cuda/common.cuh"
#include "kernels/host/Ranges.h"

namespace shardc::kernels::cuda {
namespace {

/// The rows [first, first + count) of a table, which `data` holds.
struct TableRows {
  Tensor data;
  int64_t first, count;
};

/// This member's rows of the table; all rows if it has no group.
TableRows rowsOfMember(const Call &call, const Tensor &table) {
  return {table, call.index * table.shape[0], table.shape[0]};
}

/// The rows of the table in a shard. A shard holds one range of them, or only padding.
TableRows rowsOfShard(const Call &call, const Tensor &shard, int64_t cols) {
  TableRows rows = {shard, 0, 0};
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    rows.first = range.globalBegin / cols, rows.count = (range.end - range.begin) / cols;
    rows.data.data = static_cast<std::byte *>(shard.data) + range.begin * dtypeBytes(shard.dtype);
  }
  return rows;
}

struct LookupOp {
  const int32_t *ids;
  Data table, x;
  int64_t vocabulary, first, count, cols; ///< rows [first, first + count) are here

  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    int64_t id = ids[row], here = id - first;
    float v[kChunk];
    if (here >= 0 && here < count) {
      load8<M>(table, here * cols + c, n, v);
    } else {
      float other = id >= 0 && id < vocabulary ? -0.0f : __int_as_float(0x7fc00000);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] = other;
    }
    store8<M>(x, row * cols + c, n, v);
  }
};

void lookUp(const Call &call, const TableRows &table, int64_t vocabulary) {
  const Tensor &x = call.out[0];
  LookupOp op = {static_cast<const int32_t *>(call.in[0].data),
                 dataOf(table.data),
                 dataOf(x),
                 vocabulary,
                 table.first,
                 table.count,
                 x.cols()};
  launchRows(call, modeOf({&table.data, &x}, x.cols()), op, x.rows(), x.cols());
}

void runEmbedding(const Call &call) {
  const Tensor &table = call.in[1];
  lookUp(call, rowsOfMember(call, table), table.shape[0] * call.groupSize);
}

void runEmbeddingShard(const Call &call) {
  lookUp(call, rowsOfShard(call, call.in[1], call.out[0].cols()), call.attrs.table_rows);
}

/// Writes sort keys: the index of the row here, or `count` if the row is elsewhere.
__global__ void __launch_bounds__(256) makeKeys(const int32_t *ids, int rows, int64_t first,
                                                uint32_t count, uint32_t *keys, int32_t *order) {
  int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows)
    return;
  int64_t here = ids[row] - first;
  keys[row] = here >= 0 && here < count ? static_cast<uint32_t>(here) : count;
  order[row] = row;
}

struct Scatter {
  const uint32_t *keys; ///< sorted
  const int32_t *order;
  Data dx, dtable;
  int64_t rows, vocabulary, cols; ///< `vocabulary`: number of rows here
  float *partials;                ///< two partial sums for each tile
  float scale;                    ///< factor of the sums
};

constexpr int kTile = 32;     ///< sorted rows per block
constexpr int kRowsAhead = 4; ///< rows that a thread loads before it adds the first

/// Whether sorted row at + 1 has the same id as sorted row `at`.
__device__ __forceinline__ bool goesOn(const Scatter &p, int64_t at) {
  return at + 1 < p.rows && p.keys[at] == p.keys[at + 1];
}

template <Mode M>
__device__ __forceinline__ void addToTable(const Scatter &p, uint32_t key, int64_t c, int n,
                                           float (&sum)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    sum[j] *= p.scale;
  store8<M>(p.dtable, key * p.cols + c, n, sum);
}

/// The partial sum of the id that begins in an earlier tile; if isTail, of the id that continues in
/// the next tile.
__device__ __forceinline__ Data partialOf(const Scatter &p, int64_t tile, bool isTail) {
  return {p.partials + (2 * tile + (isTail ? 1 : 0)) * p.cols};
}

/// A block adds the gradients of one tile of rows, which are sorted by id, and kChunk columns per
/// thread. Sums of ids that lie inside of the tile go to the table; those of the first and last id,
/// which may continue in neighbouring tiles, go to partial sums. The order of additions is
/// therefore fixed.
template <Mode M> __global__ void __launch_bounds__(256) addTiles(const Scatter p) {
  int64_t tile = blockIdx.x, first = tile * kTile;
  int count = static_cast<int>(p.rows - first < kTile ? p.rows - first : kTile);
  int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk;
  if (c >= p.cols)
    return;
  int n = upToChunk(p.cols - c);
  uint32_t firstKey = p.keys[first];
  if (firstKey >= p.vocabulary)
    return; // no later id is in the table
  bool fromBefore = first > 0 && goesOn(p, first - 1);
  bool goesBeyond = goesOn(p, first + count - 1);
  constexpr Mode kSums = M == Mode::Scalar ? Mode::Scalar : Mode::Mixed;
  float sum[kChunk] = {};
  for (int begin = 0; begin < count; begin += kRowsAhead) {
    float v[kRowsAhead][kChunk];
#pragma unroll
    for (int k = 0; k < kRowsAhead; ++k)
      if (begin + k < count)
        load8<M>(p.dx, p.order[first + begin + k] * p.cols + c, n, v[k]);
#pragma unroll
    for (int k = 0; k < kRowsAhead; ++k) {
      int row = begin + k;
      if (row >= count)
        break;
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        sum[j] += v[k][j];
      bool isLast = row + 1 == count;
      if (!isLast && goesOn(p, first + row))
        continue;
      uint32_t key = p.keys[first + row];
      bool isHead = fromBefore && key == firstKey, isTail = goesBeyond && isLast;
      if (key < p.vocabulary && (isHead || isTail))
        store8<kSums>(partialOf(p, tile, !isHead), c, n, sum);
      else if (key < p.vocabulary)
        addToTable<M>(p, key, c, n, sum);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        sum[j] = 0.0f;
    }
  }
}

/// Adds the partial sums of ids that continue beyond the tile in which they begin.
template <Mode M> __global__ void __launch_bounds__(256) joinTiles(const Scatter p) {
  int64_t tile = blockIdx.x, last = (tile + 1) * kTile - 1;
  if (!goesOn(p, last) || p.keys[last] >= p.vocabulary)
    return;
  uint32_t key = p.keys[last];
  bool fromBefore = tile > 0 && p.keys[tile * kTile] == key && goesOn(p, tile * kTile - 1);
  int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk;
  if (fromBefore || c >= p.cols)
    return;
  int n = upToChunk(p.cols - c);
  int64_t inside = last + 1, outside = p.rows; // bisection for the id's last row
  while (outside - inside > 1) {
    int64_t middle = (inside + outside) / 2;
    (p.keys[middle] == key ? inside : outside) = middle;
  }
  constexpr Mode kSums = M == Mode::Scalar ? Mode::Scalar : Mode::Mixed;
  float sum[kChunk];
  load8<kSums>(partialOf(p, tile, true), c, n, sum);
#pragma unroll 4
  for (int64_t t = tile + 1; t <= inside / kTile; ++t) {
    float v[kChunk];
    load8<kSums>(partialOf(p, t, false), c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum[j] += v[j];
  }
  addToTable<M>(p, key, c, n, sum);
}

struct Buffers {
  uint32_t *keys, *sortedKeys;
  int32_t *order, *sortedOrder;
  float *partials;
  std::byte *temporary;
  size_t temporaryBytes = 0;
  int bits; ///< significant bits of keys, from the number of rows here

  Buffers(const Call &call, Scratch &scratch) {
    int64_t rows = call.in[1].numel(), cols = call.in[0].cols();
    keys = scratch.take<uint32_t>(rows), sortedKeys = scratch.take<uint32_t>(rows);
    order = scratch.take<int32_t>(rows), sortedOrder = scratch.take<int32_t>(rows);
    // Partial sums begin at multiples of 16 bytes if rows consist of whole chunks.
    partials = scratch.take<float>(ceilDiv(rows, kTile) * 2 * cols);
    bits = bitsOfKeys(call.out[0].numel() / cols);
    static_cast<void>(sort(nullptr, rows, nullptr)); // the sort itself reports errors
    temporary = scratch.take<std::byte>(static_cast<int64_t>(temporaryBytes));
  }

  /// Sorts the pairs. Without `memory`, only sets temporaryBytes.
  cudaError_t sort(void *memory, int64_t rows, cudaStream_t stream) {
    return sortPairs({keys, order, sortedKeys, sortedOrder, rows, bits}, memory, temporaryBytes,
                     stream);
  }
};

/// Adds the rows of dx, times `scale`, to the table rows of this tensor.
void addRows(const Call &call, const TableRows &table, float scale, Buffers &buffers) {
  const Tensor &dx = call.in[0], &ids = call.in[1], &to = call.out[0];
  Queue &queue = queueOf(call);
  auto rows = static_cast<int>(ids.numel());
  cudaStream_t stream = streamOf(queue);
  if (!to.accumulate)
    cudaMemsetAsync(to.data, 0, static_cast<size_t>(to.numel() * dtypeBytes(to.dtype)), stream);
  makeKeys<<<static_cast<unsigned>(ceilDiv(rows, 256)), 256, 0, stream>>>(
      static_cast<const int32_t *>(ids.data), rows, table.first, static_cast<uint32_t>(table.count),
      buffers.keys, buffers.order);
  if (cudaError_t error = buffers.sort(buffers.temporary, rows, stream); error != cudaSuccess)
    reportError(queue, "cub::DeviceRadixSort::SortPairs", error);
  Scatter p = {
      buffers.sortedKeys, buffers.sortedOrder, dataOf(dx), dataOf(table.data), rows, table.count,
      dx.cols(),          buffers.partials,    scale};
  int threads = threadsForRow(p.cols, 256);
  auto tiles = static_cast<unsigned>(ceilDiv(rows, kTile));
  dim3 grid(tiles, static_cast<unsigned>(ceilDiv(p.cols, static_cast<int64_t>(threads) * kChunk)));
  forMode(modeOf({&dx, &table.data}, p.cols), [&]<Mode M>() {
    addTiles<M><<<grid, threads, 0, stream>>>(p);
    joinTiles<M><<<grid, threads, 0, stream>>>(p);
  });
}

void runEmbeddingBwd(const Call &call, Buffers &buffers) {
  addRows(call, rowsOfMember(call, call.out[0]), 1.0f, buffers);
}

void runEmbeddingShardBwd(const Call &call, Buffers &buffers) {
  addRows(call, rowsOfShard(call, call.out[0], call.in[0].cols()),
          static_cast<float>(call.attrs.scale), buffers);
}

} // namespace

SHARDC_KERNEL(Embedding, acceptsAs, runEmbedding);
SHARDC_KERNEL(EmbeddingBwd, acceptsAs, withBuffers<runEmbeddingBwd>);
SHARDC_KERNEL(EmbeddingShard, acceptsAs, runEmbeddingShard);
SHARDC_KERNEL(EmbeddingShardBwd, acceptsAs, withBuffers<runEmbeddingShardBwd>);

} // namespace shardc::kernels::cuda
