// Ops on slices of a sequence, all limited by memory.
//  attention_join combines the attention of the same queries to two sets of keys by their
//    log-sum-exp: one thread per 16 bytes of a row, all arithmetic fp32.
//  transpose moves runs of n elements: x as [outer, inner, n] becomes y as [inner, outer, n]; one
//    block column per run.
//  merge_slices moves chunks of the members' slices to their places in the sequence; block columns
//    per chunk.
//  join copies parts one after the other, with one kernel per part.
// SliceRows.h's functions clear rows and move statistics that attention over half of the queries
// leaves out: one element per thread.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/SliceRows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/quantize.cuh"

namespace shardc::kernels::cuda {
namespace {

/// Two outputs of attention over different keys, with their log-sum-exp, and the result over all
/// keys.
struct AttentionParts {
  Data a, b, to;
  const float *lseA, *lseB;
  float *lse;
  unsigned positions, heads, channels;
};

/// Joins rows of [B, S, N], whose statistics are [B, N, S]. The thread of a row's first chunk also
/// writes the row's statistic.
struct JoinRows {
  AttentionParts p;

  template <Mode M> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const {
    const int64_t i = row * p.channels + column;
    float x[kChunk], y[kChunk];
    load8<M>(p.a, i, n, x);
    load8<M>(p.b, i, n, y);
    const auto at = static_cast<unsigned>(row), position = at / p.heads;
    const int64_t sample = position / p.positions, head = at % p.heads;
    const int64_t statistic = (sample * p.heads + head) * p.positions + position % p.positions;
    const float a = p.lseA[statistic], b = p.lseB[statistic], top = fmaxf(a, b);
    const bool isEmpty = top == -INFINITY;
    const float partA = isEmpty ? 0.0f : expf(a - top), partB = isEmpty ? 0.0f : expf(b - top);
    const float total = isEmpty ? 1.0f : partA + partB;
    const float shareA = partA / total, shareB = partB / total;
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      x[j] = shareA * x[j] + shareB * y[j];
    store8<M>(p.to, i, n, x);
    if (column == 0)
      p.lse[statistic] = isEmpty ? -INFINITY : top + logf(total);
  }
};

void runAttentionJoin(const Call &call) {
  const Tensor &lse = call.in[1];
  AttentionParts p = {};
  p.a = dataOf(call.in[0]), p.b = dataOf(call.in[2]), p.to = dataOf(call.out[0]);
  p.lseA = static_cast<const float *>(lse.data);
  p.lseB = static_cast<const float *>(call.in[3].data);
  p.lse = static_cast<float *>(call.out[1].data);
  const int64_t rows = lse.numel();
  p.positions = static_cast<unsigned>(lse.shape[2]);
  p.heads = static_cast<unsigned>(lse.shape[1]);
  p.channels = static_cast<unsigned>(call.in[0].numel() / rows);
  launchRows(call, modeOf({&call.in[0], &call.in[2], &call.out[0]}, p.channels), JoinRows{p}, rows,
             p.channels);
}

/// Moves runs of `n` elements of `T`, the widest type that divides a run.
template <typename T>
__global__ void __launch_bounds__(256)
    moveRuns(const T *from, T *to, int64_t outer, int64_t inner, int64_t n) {
  awaitPrevious();
  int64_t run = blockIdx.x;
  int64_t target = run % inner * outer + run / inner;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    to[target * n + i] = from[run * n + i];
}

template <typename T> void moveAs(const Call &call, int64_t bytes) {
  int64_t outer = call.attrs.outer, inner = call.attrs.inner;
  auto n = bytes / static_cast<int64_t>(sizeof(T));
  int threads = static_cast<int>(std::clamp<int64_t>(ceilDiv(n, kWarp) * kWarp, kWarp, 256));
  launchKernel(moveRuns<T>, static_cast<unsigned>(outer * inner), threads, 0, queueOf(call),
               static_cast<const T *>(call.in[0].data), static_cast<T *>(call.out[0].data), outer,
               inner, n);
}

/// Moves chunks of `n` words. Block column c is chunk c of the sequences.
template <typename T>
__global__ void __launch_bounds__(256)
    moveChunks(const T *from, T *to, int64_t samples, int64_t members, int64_t n, bool isInverse) {
  awaitPrevious();
  int64_t merged = blockIdx.x, chunk = merged % (2 * members), sample = merged / (2 * members);
  int64_t half = chunk < members ? 0 : 1;
  int64_t member = half == 0 ? chunk : 2 * members - 1 - chunk;
  int64_t sliced = (member * samples + sample) * 2 + half;
  const T *source = from + (isInverse ? merged : sliced) * n;
  T *target = to + (isInverse ? sliced : merged) * n;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.y) * blockDim.x)
    target[i] = source[i];
}

template <typename T> void moveChunksAs(const Call &call, int64_t bytes) {
  constexpr int kThreads = 256, kColumnsMax = 1024;
  int64_t samples = call.attrs.outer, members = call.attrs.inner;
  auto n = bytes / static_cast<int64_t>(sizeof(T));
  dim3 grid(static_cast<unsigned>(samples * members * 2),
            static_cast<unsigned>(std::min<int64_t>(ceilDiv(n, kThreads), kColumnsMax)));
  launchKernel(moveChunks<T>, grid, kThreads, 0, queueOf(call),
               static_cast<const T *>(call.in[0].data), static_cast<T *>(call.out[0].data), samples,
               members, n, call.attrs.inverse);
}

/// Calls `move` with a word of the widest type that divides `bytes` and both addresses.
template <typename Move>
void withWord(const void *from, const void *to, int64_t bytes, const Move &move) {
  auto starts = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                static_cast<uintptr_t>(bytes);
  if (starts % 16 == 0)
    move(uint4{});
  else if (starts % 4 == 0)
    move(uint32_t{});
  else
    move(uint16_t{});
}

int64_t bytesOfPiece(const Call &call, int64_t pieces) {
  const Tensor &x = call.in[0];
  return x.numel() / pieces * dtypeBytes(x.dtype);
}

template <typename T>
__global__ void __launch_bounds__(256) copyWords(const T *from, T *to, int64_t n) {
  awaitPrevious();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

__global__ void __launch_bounds__(256)
    turnBytes(const uint8_t *x, uint8_t *t, int64_t rows, int64_t cols) {
  awaitPrevious();
  __shared__ TransposedTile tile;
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int chunk = static_cast<int>(threadIdx.x) % (kTileCols / kChunk);
  int64_t firstRow = static_cast<int64_t>(blockIdx.y) * kTileRows;
  int64_t firstCol = static_cast<int64_t>(blockIdx.x) * kTileCols;
  int64_t col = firstCol + chunk * kChunk;
  bool isWhole = cols % kChunk == 0 && reinterpret_cast<uintptr_t>(x) % kChunk == 0;
  uint2 codes[kRowsEach] = {};
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    int64_t row = firstRow + group * kRowsEach + r;
    const uint8_t *from = x + row * cols + col;
    if (row >= rows || col >= cols)
      continue;
    if (isWhole) {
      codes[r] = *reinterpret_cast<const uint2 *>(from);
      continue;
    }
    for (int j = 0; j < kChunk && col + j < cols; ++j)
      (j < 4 ? codes[r].x : codes[r].y) |= static_cast<uint32_t>(from[j]) << (j % 4 * 8);
  }
  tile.put(group, chunk, codes);
  __syncthreads();
  tile.store(t, rows, cols, firstRow, firstCol);
}

/// Transposes a matrix of 8-bit numbers, in the tiles of quantisation.
void runTurnBytes(const Call &call) {
  int64_t rows = call.attrs.outer, cols = call.attrs.inner;
  launchKernel(turnBytes, gridOfTiles(rows, cols), 256, 0, queueOf(call),
               static_cast<const uint8_t *>(call.in[0].data),
               static_cast<uint8_t *>(call.out[0].data), rows, cols);
}

void runTranspose(const Call &call) {
  if (dtypeBytes(call.in[0].dtype) == 1)
    return runTurnBytes(call);
  int64_t bytes = bytesOfPiece(call, call.attrs.outer * call.attrs.inner);
  withWord(call.in[0].data, call.out[0].data, bytes,
           [&](auto word) { moveAs<decltype(word)>(call, bytes); });
}

void runMerge(const Call &call) {
  int64_t bytes = bytesOfPiece(call, call.attrs.outer * call.attrs.inner * 2);
  withWord(call.in[0].data, call.out[0].data, bytes,
           [&](auto word) { moveChunksAs<decltype(word)>(call, bytes); });
}

/// Copies each part with the largest words that fit its address and size.
void runJoin(const Call &call) {
  constexpr int kThreads = 256, kBlocksMax = 1024;
  auto *to = static_cast<std::byte *>(call.out[0].data);
  for (int64_t i = 0; i < call.listCount; ++i) {
    const Tensor &part = call.list[i];
    int64_t bytes = part.numel() * dtypeBytes(part.dtype);
    withWord(part.data, to, bytes, [&](auto word) {
      using Word = decltype(word);
      auto n = bytes / static_cast<int64_t>(sizeof(Word));
      auto blocks = std::min<int64_t>(ceilDiv(n, kThreads), kBlocksMax);
      launchKernel(copyWords<Word>, static_cast<unsigned>(blocks), kThreads, 0, queueOf(call),
                   static_cast<const Word *>(part.data), reinterpret_cast<Word *>(to), n);
    });
    to += bytes;
  }
}

const char *acceptsAttentionJoin(const Call &call) {
  if (const char *reason = host::kAttentionJoin.accepts(call))
    return reason;
  return call.in[1].numel() > INT32_MAX ? "there are 2^31 rows or more" : nullptr;
}

const char *acceptsMerge(const Call &call) {
  if (const char *reason = host::kMergeSlices.accepts(call))
    return reason;
  return call.attrs.outer * call.attrs.inner > INT32_MAX / 2 ? "there are 2^31 chunks or more"
                                                             : nullptr;
}

const char *acceptsTranspose(const Call &call) {
  if (const char *reason = host::kTranspose.accepts(call))
    return reason;
  if (dtypeBytes(call.in[0].dtype) == 1 && call.attrs.outer > int64_t{kTileRows} * 65535)
    return "there are 2^23 rows or more";
  return call.attrs.outer * call.attrs.inner > INT32_MAX ? "there are 2^31 runs or more" : nullptr;
}

__global__ void __launch_bounds__(256)
    clearRows(char *x, int64_t sampleBytes, int64_t firstByte, int64_t bytes) {
  awaitPrevious();
  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 2;
  if (i < bytes)
    *reinterpret_cast<uint16_t *>(x + blockIdx.y * sampleBytes + firstByte + i) = 0;
}

/// Row blockIdx.y of all [B·N, positions]. `part` has its columns [first, first + n).
struct Statistics {
  float *all, *part;
  int64_t positions, first, n;
};

__global__ void __launch_bounds__(256) putStatistics(const Statistics p, bool fillsRest) {
  awaitPrevious();
  int64_t s = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, at = s - p.first;
  bool isPart = at >= 0 && at < p.n;
  if (s < p.positions && (isPart || fillsRest))
    p.all[blockIdx.y * p.positions + s] = isPart ? p.part[blockIdx.y * p.n + at] : -INFINITY;
}

__global__ void __launch_bounds__(256) takeStatistics(const Statistics p) {
  awaitPrevious();
  int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < p.n)
    p.part[blockIdx.y * p.n + at] = p.all[blockIdx.y * p.positions + p.first + at];
}

dim3 gridOf(const Tensor &lse, int64_t columns) {
  return {static_cast<unsigned>(ceilDiv(columns, 256)),
          static_cast<unsigned>(lse.shape[0] * lse.shape[1])};
}

} // namespace

void launchClearRows(const Tensor &x, int64_t first, int64_t rows, Queue &queue) {
  int64_t sample = x.numel() / x.shape[0] * dtypeBytes(x.dtype), row = sample / x.shape[1];
  dim3 grid(static_cast<unsigned>(ceilDiv(rows * row, 256 * 2)), static_cast<unsigned>(x.shape[0]));
  launchKernel(clearRows, grid, 256, 0, queue, static_cast<char *>(x.data), sample, first * row,
               rows * row);
}

void launchPutStatistics(const float *from, int64_t first, int64_t queries, const Tensor &lse,
                         bool fillsRest, Queue &queue) {
  Statistics p = {static_cast<float *>(lse.data), const_cast<float *>(from), lse.shape[2], first,
                  queries};
  launchKernel(putStatistics, gridOf(lse, p.positions), 256, 0, queue, p, fillsRest);
}

void launchTakeStatistics(const Tensor &lse, int64_t first, int64_t queries, float *to,
                          Queue &queue) {
  Statistics p = {static_cast<float *>(lse.data), to, lse.shape[2], first, queries};
  launchKernel(takeStatistics, gridOf(lse, queries), 256, 0, queue, p);
}

const Kernel kAttentionJoin = {"attention_join_cuda", runAttentionJoin, acceptsAttentionJoin};
const Kernel kTranspose = {"transpose_cuda", runTranspose, acceptsTranspose};
const Kernel kMergeSlices = {"merge_slices_cuda", runMerge, acceptsMerge};
SHARDC_KERNEL(Join, acceptsAs, runJoin);

} // namespace shardc::kernels::cuda
