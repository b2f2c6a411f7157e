// q = x·m in 8 bits, or the same of xᵀ, with a power of two m per block and the scale 1/m. Bitwise
// equal to kernels/host/Quantize.cpp. x is f32, bf16 or f16, or computed by an activation. Mapping:
// 16 or 4 threads process blocks within rows of x; each converts 8 elements of two or four rows.
// Blocks along columns, for q = xᵀ, are processed in tiles of 128 rows by 64 columns, which are
// transposed in shared memory as in quantize. Square blocks use two such tiles side by side.
// Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_block_tiles.cuh"

namespace shardc::kernels::cuda {
namespace {

__device__ __forceinline__ unsigned magnitudeOf(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}

/// A thread block of quantizeRows has kRowCols columns of some rows of x.
constexpr int kRowThreads = 128, kRowCols = kRowThreads * kChunk;

/// Rows per thread, for sources that read several matrices and for others.
template <typename Source> constexpr int kRowsTogether = Source::kReads > 1 ? 4 : 2;

template <Mode M, ScaleBlocks kBlocks, typename Source>
__global__ void __launch_bounds__(kRowThreads)
    quantizeRows(const __grid_constant__ Source source, const BlockTarget to, int64_t rows,
                 int64_t cols, unsigned across) {
  awaitPrevious();
  constexpr int kWidth = kBlocks == ScaleBlocks::Rows32 ? 32 : 128;
  int64_t first = static_cast<int64_t>(blockIdx.x / across) * kRowsTogether<Source>;
  int64_t col = static_cast<int64_t>(blockIdx.x % across) * kRowCols +
                static_cast<int64_t>(threadIdx.x) * kChunk;
  int64_t right = col / kWidth, perRow = (cols + kWidth - 1) / kWidth;
  bool isFirst = col % kWidth == 0 && col < cols;
  auto countOf = [&](int r) {
    return first + r < rows && col < cols
               ? static_cast<int>(cols - col < kChunk ? cols - col : kChunk)
               : 0;
  };
  Chunk<M> read[kRowsTogether<Source>][Source::kReads] = {};
#pragma unroll
  for (int r = 0; r < kRowsTogether<Source>; ++r)
#pragma unroll
    for (int i = 0; i < Source::kReads; ++i)
      if (int n = countOf(r)) {
        Spot spot = source.at(i, first + r, col);
        read[r][i] = readChunk<M>(spot.data, spot.index, n);
      }
  auto columns = source.template columnsOf<M>(col, countOf(0));
#pragma unroll
  for (int r = 0; r < kRowsTogether<Source>; ++r) {
    int64_t row = first + r;
    Chunk<M> made[1];
    source.template make<M>(read[r], row, columns, made);
    int64_t index = kBlocks == ScaleBlocks::Rows128 ? right * rows + row : row * perRow + right;
    uint2 codes = codesOfRowBlock<M, kBlocks>(made[0], to, index, isFirst && row < rows);
    if (int n = countOf(r))
      storeRow<M>(to.q, row * cols + col, n, codes);
  }
}

template <ScaleBlocks kBlocks, typename Source>
void launchRowBlocks(const Call &call, Mode mode, const Source &source) {
  const Tensor &q = call.out[0];
  BlockTarget to = blockTargetOf(call);
  int64_t rows = q.rows(), cols = q.cols();
  auto across = static_cast<unsigned>(ceilDiv(cols, kRowCols));
  auto blocks = static_cast<unsigned>(across * ceilDiv(rows, kRowsTogether<Source>));
  forQuantisedMode(mode, [&]<Mode M>() {
    launchKernel(quantizeRows<M, kBlocks, Source>, blocks, kRowThreads, 0, queueOf(call), source,
                 to, rows, cols, across);
  });
}

constexpr int kWarps = 256 / kWarp, kChunks = kTileCols / kChunk;
constexpr int kRowsOfWarp = kWarp / kChunks * kRowsEach;

/// The amaxes of each warp's rows of a tile, by column.
using Largest = unsigned[kWarps][kTileCols];

/// A thread's position in a tile of x[rows,cols].
struct Place {
  int64_t rows, cols, firstRow, firstCol;
  bool isTransposed; ///< q is xᵀ
  int group = static_cast<int>(threadIdx.x) / kChunks;
  int chunk = static_cast<int>(threadIdx.x) % kChunks;
  int warp = static_cast<int>(threadIdx.x) / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;

  __device__ int64_t row(int r) const { return firstRow + group * kRowsEach + r; }
  __device__ int64_t col(int tile) const { return firstCol + tile * kTileCols + chunk * kChunk; }
  /// Number of elements of the thread's chunk in row r; 0 beyond the ends.
  __device__ int count(int r, int tile) const {
    if (row(r) >= rows || col(tile) >= cols)
      return 0;
    return static_cast<int>(cols - col(tile) < kChunk ? cols - col(tile) : kChunk);
  }
};

/// Reads tiles side by side, and computes the amaxes for all threads.
template <Mode M, int kTiles>
__device__ __forceinline__ void loadTiles(const Data &x, const Place &at,
                                          float (&v)[kTiles][kRowsEach][kChunk], Largest &largest) {
  unsigned most[kChunk] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      if (int n = at.count(r, tile))
        load8<M>(x, at.row(r) * at.cols + at.col(tile), n, v[tile][r]);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        most[j] = max(most[j], magnitudeOf(v[tile][r][j]));
    }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
#pragma unroll
    for (int offset = kChunks; offset < kWarp; offset *= 2)
      most[j] = max(most[j], __shfl_xor_sync(0xffffffffu, most[j], offset));
    if (at.lane < kChunks)
      largest[at.warp][at.chunk * kChunk + j] = most[j];
  }
  __syncthreads();
}

/// The multiplier of a square block, from everything that the threads have read.
__device__ __forceinline__ float multiplierOfSquare(const Largest &largest, const BlockTarget &to,
                                                    const Place &at) {
  unsigned most = 0;
  for (int i = at.lane; i < kWarps * kTileCols; i += kWarp)
    most = max(most, largest[i / kTileCols][i % kTileCols]);
  most = __reduce_max_sync(0xffffffffu, most);
  int64_t index = at.isTransposed ? int64_t{blockIdx.x} * gridDim.y + blockIdx.y
                                  : int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  return multiplierOfBlock<ScaleBlocks::Squares128>(most, to, index, threadIdx.x == 0);
}

/// Computes the multipliers of the thread's columns, which are rows of q: one per column, or one
/// per 32 rows of it.
template <ScaleBlocks kBlocks>
__device__ __forceinline__ void findMultipliers(const Largest &largest, const BlockTarget &to,
                                                const Place &at, float (&multipliers)[kChunk]) {
  constexpr int kTogether = kBlocks == ScaleBlocks::Rows32 ? 2 : kWarps;
  int firstWarp = at.warp / kTogether * kTogether;
  int64_t right = at.firstRow / (kTogether * kRowsOfWarp) + at.warp / kTogether;
  int64_t perRow = (at.rows + 31) / 32;
  bool isFirst = at.warp == firstWarp && at.lane < kChunks;
  bool isThere = at.firstRow + firstWarp * kRowsOfWarp < at.rows;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    int64_t col = at.col(0) + j;
    unsigned most = 0;
#pragma unroll
    for (int w = 0; w < kTogether; ++w)
      most = max(most, largest[firstWarp + w][at.chunk * kChunk + j]);
    int64_t index = kBlocks == ScaleBlocks::Rows128 ? right * at.cols + col : col * perRow + right;
    multipliers[j] =
        multiplierOfBlock<kBlocks>(most, to, index, isFirst && isThere && col < at.cols);
  }
}

/// Quantises square blocks with two tiles side by side, or columns with one tile.
template <Mode M, ScaleBlocks kBlocks>
__global__ void __launch_bounds__(256)
    quantizeTiles(const Data x, const BlockTarget to, int64_t rows, int64_t cols,
                  bool isTransposed) {
  awaitPrevious();
  constexpr bool kIsSquare = kBlocks == ScaleBlocks::Squares128;
  constexpr int kTiles = kIsSquare ? 2 : 1;
  __shared__ TransposedTile transposed;
  __shared__ Largest largest;
  const Place at = {rows, cols, static_cast<int64_t>(blockIdx.y) * kTileRows,
                    static_cast<int64_t>(blockIdx.x) * kTileCols * kTiles, isTransposed};
  float v[kTiles][kRowsEach][kChunk] = {}, multipliers[kChunk];
  loadTiles<M>(x, at, v, largest);
  if constexpr (kIsSquare) {
    float multiplier = multiplierOfSquare(largest, to, at);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      multipliers[j] = multiplier;
  } else {
    findMultipliers<kBlocks>(largest, to, at, multipliers);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    uint2 codes[kRowsEach];
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      codes[r] = convert(to.isE5M2, multipliers, v[tile][r]);
      int n = at.count(r, tile);
      if (!isTransposed && n > 0)
        storeRow<M>(to.q, at.row(r) * cols + at.col(tile), n, codes[r]);
    }
    if (!isTransposed)
      continue;
    if (tile > 0)
      __syncthreads(); // the previous tile has been written
    transposed.put(at.group, at.chunk, codes);
    __syncthreads();
    transposed.store(to.q, rows, cols, at.firstRow, at.firstCol + tile * kTileCols);
  }
}

template <ScaleBlocks kBlocks> void launch(const Call &call) {
  const Tensor &x = call.in[0], &q = call.out[0];
  int64_t rows = x.rows(), cols = x.cols();
  constexpr bool kIsSquare = kBlocks == ScaleBlocks::Squares128;
  bool isTransposed = call.attrs.transposed;
  Mode mode = modeOf({&x, &q}, cols);
  if constexpr (!kIsSquare)
    if (!isTransposed)
      return launchRowBlocks<kBlocks>(call, mode, Stored{dataOf(x), cols});
  BlockTarget to = blockTargetOf(call);
  if constexpr (kBlocks == ScaleBlocks::Rows128)
    return blocktiles::launchBlockTiles<false>(call, mode, Stored{dataOf(x), cols},
                                               {{{{}, 0, to, cols}}}, rows, cols);
  forQuantisedMode(mode, [&]<Mode M>() {
    launchKernel(quantizeTiles<M, kBlocks>, gridOfTiles(rows, cols, kIsSquare ? 2 : 1), 256, 0,
                 queueOf(call), dataOf(x), to, rows, cols, isTransposed);
  });
}

ScaleBlocks blocksOf(const Call &call) {
  const Tensor &q = call.out[0], &scale = call.out[1];
  return *shardc::blocksOf(scale.dtype == DType::U8, {scale.rows(), scale.cols()},
                           {q.rows(), q.cols()});
}

void run(const Call &call) {
  switch (blocksOf(call)) {
  case ScaleBlocks::Rows128:
    return launch<ScaleBlocks::Rows128>(call);
  case ScaleBlocks::Squares128:
    return launch<ScaleBlocks::Squares128>(call);
  case ScaleBlocks::Rows32:
    return launch<ScaleBlocks::Rows32>(call);
  }
}

template <typename Source> void runMade(const Call &call) {
  const Tensor &x = call.in[0], &q = call.out[0];
  launchRowBlocks<ScaleBlocks::Rows128>(call, modeOfQuantised({&x}, q, q.cols()),
                                        sourceOf<Source>(call));
}

void runGeGlu(const Call &call) {
  byTanh<GeGluSource>(call, [&]<typename Source>() { runMade<Source>(call); });
}

} // namespace

SHARDC_KERNEL(SwiGluQuantizeBlocks, acceptsAs, runMade<SwiGluSource>);
SHARDC_KERNEL(GeGluQuantizeBlocks, acceptsAs, runGeGlu);
SHARDC_KERNEL(SquaredReluQuantizeBlocks, acceptsAs, runMade<SquaredReluSource>);
SHARDC_KERNEL(QuantizeBlocks, acceptsTiles, run);

} // namespace shardc::kernels::cuda
