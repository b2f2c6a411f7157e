// Reductions. reduce_rows: y[C] (+)= sum of x's rows. token_count: n = sum of the mask.
// sum_squares: ss = sum of squares of the valid elements of a list of shards, in fp64; an f64[1] in
// the list is already such a sum. Data are f32, bf16 or f16 each. Mapping: reduce_rows adds slabs
// of rows in blocks of 256 columns by 8 rows, then adds the slabs in order. sum_squares divides the
// ranges of all shards into tiles of 8192 elements. Each of 528 blocks squares every 528th tile,
// and one block adds their sums in order, so that the norm is deterministic. One block counts
// tokens. Limited by memory: each element is read once. H200, 2026-11: sum_squares 4.3, reduce_rows
// 2.4 TB/s of a copy's 4.24.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Squares.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/host/Ranges.h"

namespace shardc::kernels::cuda {
namespace {

template <Mode M>
__global__ void __launch_bounds__(kWarp *kSumWarps)
    sumSlabs(const Data x, int64_t rows, int64_t cols, float *partials) {
  awaitPrevious();
  int64_t c = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kChunk;
  int n = upToChunk(cols - c);
  float sum[kChunk] = {}, v[kChunk];
  if (c < cols) {
    int64_t step = static_cast<int64_t>(gridDim.y) * kSumWarps;
#pragma unroll 4
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kSumWarps + threadIdx.y; row < rows;
         row += step) {
      load8<M>(x, row * cols + c, n, v);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        sum[j] += v[j];
    }
  }
  addWarps(sum, partials, cols);
}

/// One for each multiprocessor if there are many rows.
int slabsFor(const Call &call) {
  return static_cast<int>(
      std::min<int64_t>(ceilDiv(call.in[0].rows(), 8 * kSumWarps), multiprocessorsOf(call)));
}

struct RowBuffers {
  float *partials;

  RowBuffers(const Call &call, Scratch &scratch) {
    partials = scratch.take<float>(slabsFor(call) * call.in[0].cols());
  }
};

/// Each block sums a slab of rows; another kernel adds the slabs in order.
void runReduceRows(const Call &call, const RowBuffers &buffers) {
  const Tensor &x = call.in[0];
  int slabs = slabsFor(call);
  dim3 grid(static_cast<unsigned>(ceilDiv(x.cols(), kWarp * kChunk)), static_cast<unsigned>(slabs));
  forMode(modeOf({&x}, x.cols()), [&]<Mode M>() {
    launchKernel(sumSlabs<M>, grid, dim3(kWarp, kSumWarps), 0, queueOf(call), dataOf(x), x.rows(),
                 x.cols(), buffers.partials);
  });
  ColumnTargets targets = {};
  targets.out[0] = dataOf(call.out[0]);
  launchAddPartials(call, buffers.partials, slabs, 1, x.cols(), targets);
}

__global__ void __launch_bounds__(1024)
    countTokens(const float *mask, int64_t numel, float *count) {
  awaitPrevious();
  double sum[1] = {0.0};
  for (int64_t i = threadIdx.x; i < numel; i += blockDim.x)
    sum[0] += static_cast<double>(mask[i]);
  blockSum(sum);
  if (threadIdx.x == 0)
    *count = static_cast<float>(sum[0]);
}

void runTokenCount(const Call &call) {
  const Tensor &mask = call.in[0];
  launchKernel(countTokens, 1, 1024, 0, queueOf(call), static_cast<const float *>(mask.data),
               mask.numel(), static_cast<float *>(call.out[0].data));
}

constexpr int kSquareThreads = 256,
              kChunksAhead = 4; ///< chunks that a thread loads before it squares them
constexpr int64_t kTile = int64_t{kSquareThreads} * kChunksAhead * kChunk;
constexpr int kPiecesMax = 96; ///< pieces are launch parameters, within 4 KiB
constexpr int kSumsMax = 320;  ///< addresses of existing sums are launch parameters, too

/// A range of valid elements, and its first tile in the launch. Its squares are multiplied so that
/// the sum can be divided by the common multiple of all numbers of copies.
struct Piece {
  Data g;
  int64_t begin, end;
  int32_t firstTile;
  float times;

  int32_t tiles() const {
    return static_cast<int32_t>(ceilDiv(end - begin / kChunk * kChunk, kTile));
  }
  /// Whether the range lies in the same shard and begins where this piece ends.
  bool isFollowedBy(const Data &shard, const ParamRange &range) const {
    return shard.p == g.p && range.begin == end;
  }
};

struct Pieces {
  Piece piece[kPiecesMax];
  int count;
  int32_t tiles;
};
static_assert(sizeof(Pieces) <= 4096);

/// In fp64, the square of an f32 number is exact and never overflows.
__device__ __forceinline__ void addSquare(float value, double &sum) {
  sum = fma(static_cast<double>(value), static_cast<double>(value), sum);
}

/// Adds the squares of a tile that lies within one piece, from this thread's first element on. All
/// loads precede the first use.
__device__ __forceinline__ void addWholeTile(const Data &g, int64_t first, double &sum) {
  constexpr int64_t kStep = kSquareThreads * kChunk;
  if (g.format == Format::F32) {
    float4 words[kChunksAhead][2];
#pragma unroll
    for (int a = 0; a < kChunksAhead; ++a) {
      const auto *from =
          reinterpret_cast<const float4 *>(static_cast<const float *>(g.p) + first + a * kStep);
      words[a][0] = from[0], words[a][1] = from[1];
    }
#pragma unroll
    for (int a = 0; a < kChunksAhead; ++a)
#pragma unroll
      for (const float4 &part : words[a])
        addSquare(part.x, sum), addSquare(part.y, sum), addSquare(part.z, sum),
            addSquare(part.w, sum);
    return;
  }
  uint4 words[kChunksAhead];
#pragma unroll
  for (int a = 0; a < kChunksAhead; ++a)
    words[a] = *chunkOf(g, first + a * kStep);
#pragma unroll
  for (int a = 0; a < kChunksAhead; ++a) {
    float v[kChunk];
    unpack<Mode::Mixed>(g, words[a], v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      addSquare(v[j], sum);
  }
}

/// Sums the squares of the launch's tiles. Tiles begin at multiples of 8 elements of the shard, so
/// that whole chunks are aligned.
__global__ void __launch_bounds__(kSquareThreads, kSquareBlocksEach)
    sumSquares(const __grid_constant__ Pieces pieces, double *partials) {
  awaitPrevious();
  double total[1] = {0.0}, ofPiece = 0.0;
  int at = 0;
  for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < pieces.tiles;
       tile += static_cast<int32_t>(gridDim.x)) {
    for (; at + 1 < pieces.count && pieces.piece[at + 1].firstTile <= tile; ++at) {
      total[0] = fma(static_cast<double>(pieces.piece[at].times), ofPiece, total[0]);
      ofPiece = 0.0;
    }
    const Piece &piece = pieces.piece[at];
    int64_t firstOfTile = piece.begin / kChunk * kChunk + (tile - piece.firstTile) * kTile;
    int64_t first = firstOfTile + static_cast<int64_t>(threadIdx.x) * kChunk;
    if (firstOfTile >= piece.begin && firstOfTile + kTile <= piece.end)
      addWholeTile(piece.g, first, ofPiece);
    else
      for (int a = 0; a < kChunksAhead; ++a) {
        int64_t i = first + a * kSquareThreads * kChunk;
        for (int64_t k = max(i, piece.begin); k < min(i + kChunk, piece.end); ++k)
          addSquare(element(piece.g, k), ofPiece);
      }
  }
  if (pieces.count > 0)
    total[0] = fma(static_cast<double>(pieces.piece[at].times), ofPiece, total[0]);
  blockSum(total);
  if (threadIdx.x == 0)
    partials[blockIdx.x] = total[0];
}

__global__ void __launch_bounds__(1024)
    addSquares(const double *partials, int count, double copies, double *ss) {
  awaitPrevious();
  double total[1] = {0.0};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    total[0] += partials[i];
  blockSum(total);
  if (threadIdx.x == 0)
    *ss = total[0] / copies;
}

struct Sums {
  const double *sum[kSumsMax];
  float times[kSumsMax];
  int count;
};
static_assert(sizeof(Sums) + sizeof(double *) <= 4096);

__global__ void __launch_bounds__(512)
    takeSums(const __grid_constant__ Sums sums, double *partials) {
  awaitPrevious();
  for (int i = static_cast<int>(threadIdx.x); i < sums.count; i += static_cast<int>(blockDim.x))
    partials[i] = static_cast<double>(sums.times[i]) * *sums.sum[i];
}

bool isSum(const Tensor &t) { return t.dtype == DType::F64; }

struct SquareBuffers {
  double *partials;
  int64_t launches, sums = 0;

  SquareBuffers(const Call &call, Scratch &scratch) {
    // The executor asks for the size while the ranges are known. Each range is in at most one
    // launch.
    launches = std::max<int64_t>(ceilDiv(call.rangesCount, kPiecesMax), 1);
    for (int64_t i = 0; i < call.listCount; ++i)
      sums += isSum(call.list[i]);
    partials = scratch.take<double>(launches * squareBlocks(call) + sums);
  }
};

/// Copies the existing sums of the list to consecutive partial sums.
void launchTakeSums(const Call &call, int64_t copies, double *partials) {
  Sums sums = {};
  auto flush = [&] {
    launchKernel(takeSums, 1, 512, 0, queueOf(call), sums, partials);
    partials += sums.count;
    sums.count = 0;
  };
  for (int64_t i = 0; i < call.listCount; ++i) {
    if (!isSum(call.list[i]))
      continue;
    sums.times[sums.count] = static_cast<float>(host::timesOf(call, i, copies));
    sums.sum[sums.count++] = static_cast<const double *>(call.list[i].data);
    if (sums.count == kSumsMax)
      flush();
  }
  if (sums.count > 0)
    flush();
}

/// Collects the ranges of all shards in pieces of a few launches, each of which writes
/// squareBlocks() partial sums. One last kernel adds all partial sums in order.
void runSumSquares(const Call &call, const SquareBuffers &buffers) {
  Pieces pieces = {};
  const int64_t copies = host::copiesOf(call);
  const int blocks = squareBlocks(call);
  int64_t launched = 0;
  auto flush = [&] {
    launchKernel(sumSquares, blocks, kSquareThreads, 0, queueOf(call), pieces,
                 buffers.partials + launched++ * blocks);
    pieces.count = 0, pieces.tiles = 0;
  };
  for (int64_t i = 0; i < call.listCount; ++i)
    for (const ParamRange &range : host::rangesOfShard(call, i)) {
      if (range.begin == range.end)
        continue;
      Data g = dataOf(call.list[i]);
      if (pieces.count > 0 && pieces.piece[pieces.count - 1].isFollowedBy(g, range)) {
        Piece &last = pieces.piece[pieces.count - 1]; // for example experts of one parameter
        last.end = range.end;
        pieces.tiles = last.firstTile + last.tiles();
        continue;
      }
      if (pieces.count == kPiecesMax)
        flush();
      pieces.piece[pieces.count++] = {g, range.begin, range.end, pieces.tiles,
                                      static_cast<float>(host::timesOf(call, i, copies))};
      pieces.tiles += pieces.piece[pieces.count - 1].tiles();
    }
  if (pieces.count > 0 || (launched == 0 && buffers.sums == 0))
    flush();
  if (buffers.sums > 0)
    launchTakeSums(call, copies, buffers.partials + launched * blocks);
  launchAddSquares(buffers.partials, launched * blocks + buffers.sums, static_cast<double>(copies),
                   static_cast<double *>(call.out[0].data), queueOf(call));
}

/// Refuses shards that are not aligned to 16 bytes, because whole chunks are read at once.
const char *acceptsSumSquares(const Call &call) {
  if (const char *reason = host::kSumSquares.accepts(call))
    return reason;
  for (int64_t i = 0; i < call.listCount; ++i)
    if (host::timesOf(call, i, host::copiesOf(call)) >= 1 << 24)
      return "the squares of a gradient count 2^24 times or more";
  for (int64_t i = 0; i < call.listCount; ++i)
    if (reinterpret_cast<uintptr_t>(call.list[i].data) % 16 != 0)
      return "a gradient does not begin at a multiple of 16 bytes";
  return nullptr;
}

} // namespace

void launchSquares(const Call &call, const Tensor &x, double *partials, double *ss) {
  const int blocks = squareBlocks(call);
  Pieces pieces = {};
  pieces.piece[0] = {dataOf(x), 0, x.numel(), 0, 1.0f};
  pieces.count = 1, pieces.tiles = pieces.piece[0].tiles();
  launchKernel(sumSquares, blocks, kSquareThreads, 0, queueOf(call), pieces, partials);
  launchAddSquares(partials, blocks, 1.0, ss, queueOf(call));
}

void launchAddSquares(const double *partials, int64_t count, double copies, double *ss,
                      Queue &queue) {
  launchKernel(addSquares, 1, 1024, 0, queue, partials, static_cast<int>(count), copies, ss);
}

SHARDC_KERNEL(ReduceRows, acceptsAs, withBuffers<runReduceRows>);
SHARDC_KERNEL(TokenCount, acceptsAs, runTokenCount);
const Kernel kSumSquares =
    kernelOf("sum_squares_cuda", acceptsSumSquares, withBuffers<runSumSquares>);

} // namespace shardc::kernels::cuda
