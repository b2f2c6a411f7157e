// Quantises the results of a source in blocks of 1 by 128, both along columns and along rows.
// Limited by memory. Mapping: 256 threads process a tile of 128 rows by 128 columns, which contains
// whole blocks in both directions. Sixteen adjacent threads compute a row; each computes 8 columns
// in each of 8 rows. 16-bit operands are copied to shared memory at once. The results replace them
// there, rounded to the type in which the separate op would store them. Rows are quantised when
// they are computed, and columns when the amax of each column is known. Operands of other types are
// read twice.
#pragma once

#include "kernels/cuda/quantize_blocks.cuh"
#include "kernels/cuda/quantize_sources.cuh"

namespace shardc::kernels::cuda {
namespace blocktiles {

inline constexpr int kThreads = 256, kChunks = kBlockCols / kChunk;
/// Groups of threads that compute different rows. Each group has four rows in each half of a tile.
inline constexpr int kSlices = kThreads / kChunks;
inline constexpr int kHalves = kTileRows / (kSlices * kRowsEach);
inline constexpr int kWarps = kThreads / kWarp;

/// The amax of each of a thread's columns, over the rows so far.
template <Mode M> struct ColumnMost {
  unsigned words[kWords<M>] = {};

  __device__ __forceinline__ void join(const Chunk<M> &chunk) {
#pragma unroll
    for (int i = 0; i < kWords<M>; ++i)
      words[i] = larger<M>(words[i], amaxesOf<M>(wordOf<M>(chunk, i)));
  }
};

/// Exchanges amaxes with the thread `offset` lanes away: sends `given`, and joins the received ones
/// to `kept`.
template <Mode M>
__device__ __forceinline__ void joinNeighbour(PairMost<M> &kept, const PairMost<M> &given,
                                              int offset) {
#pragma unroll
  for (int i = 0; i < PairMost<M>::kCount; ++i)
    kept.words[i] = larger<M>(kept.words[i], __shfl_xor_sync(0xffffffffu, given.words[i], offset));
}

// ---- tiles ----

/// The destinations of the quantised numbers of one part of a source.
struct BlockForm {
  BlockTarget rows;    ///< along rows; only used for the first two parts
  int64_t stride;      ///< elements from one row of q to the next
  BlockTarget columns; ///< transposed, along columns
  int64_t perBand;     ///< number of column scales per 128 rows
};

template <int kParts> struct BlockForms { BlockForm part[kParts]; };

/// Shared memory of a block. Transposed tiles reuse the space of values after all threads have read
/// them.
template <Mode M, int kParts> struct Shared {
  union Part {
    uint4 kept[kIsNarrow<M> ? kHalves * kRowsEach * kThreads : 1];
    TransposedTile transposed[kBlockCols / kTileCols];
  };
  Part parts[kParts];
  unsigned largest[kWarps][kParts][kChunks * kWords<M>];
  alignas(16) float multipliers[kParts][kBlockCols];
};

/// A thread's position in the matrix.
struct BlockPlace {
  int64_t rows, cols;
  int64_t firstRow = static_cast<int64_t>(blockIdx.y) * kTileRows;
  int64_t firstCol = static_cast<int64_t>(blockIdx.x) * kBlockCols;
  int chunk = static_cast<int>(threadIdx.x) % kChunks;
  int slice = static_cast<int>(threadIdx.x) / kChunks;
  int64_t col = firstCol + chunk * kChunk;
  int count = static_cast<int>(cols - col < kChunk ? (cols > col ? cols - col : 0) : kChunk);

  /// Number of valid columns of the thread's chunk; 8 in modes with whole chunks.
  template <Mode M> __device__ __forceinline__ int countOf() const {
    return kIsNarrow<M> ? kChunk : count;
  }
  __device__ __forceinline__ bool has(int half, int r) const {
    return row(half) + r < rows && count > 0;
  }
  __device__ __forceinline__ int group(int half) const { return half * kSlices + slice; }
  __device__ __forceinline__ int64_t row(int half) const {
    return firstRow + group(half) * kRowsEach;
  }
};

/// Index in `kept` of the thread's chunk of row r in a half.
__device__ __forceinline__ int keptAt(int half, int r) {
  return (half * kRowsEach + r) * kThreads + static_cast<int>(threadIdx.x);
}

/// Starts the copies of all chunks that a thread reads, to the places where it will keep its
/// results.
template <Mode M, typename Source>
__device__ __forceinline__ void askForRows(const Source &source, Shared<M, Source::kParts> &shared,
                                           const BlockPlace &at) {
  static_assert(Source::kReads <= Source::kParts);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
#pragma unroll
      for (int i = 0; i < Source::kReads; ++i)
        if (at.has(half, r)) {
          Spot spot = source.at(i, at.row(half) + r, at.col);
          copyAhead(&shared.parts[i].kept[keptAt(half, r)], chunkOf(spot.data, spot.index));
        }
    endCopies();
  }
}

/// Computes four rows of each part. Elements outside the matrix are 0.
template <Mode M, typename Source, typename Columns>
__device__ __forceinline__ void
makeRows(const Source &source, const Columns &columns, const Shared<M, Source::kParts> &shared,
         const BlockPlace &at, int half, Chunk<M> (&made)[kRowsEach][Source::kParts]) {
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    if (!at.has(half, r))
      continue;
    int64_t row = at.row(half) + r;
    Chunk<M> read[Source::kReads];
#pragma unroll
    for (int i = 0; i < Source::kReads; ++i) {
      if constexpr (kIsNarrow<M>) {
        read[i].words = shared.parts[i].kept[keptAt(half, r)];
      } else {
        Spot spot = source.at(i, row, at.col);
        read[i] = readChunk<M>(spot.data, spot.index, at.count);
      }
    }
    source.template make<M>(read, row, columns, made[r]);
  }
}

/// Quantises four rows of the first two parts. Of the sixteen threads of a row, four find the
/// amaxes of each of these rows. Two of the four compute the multipliers, one for each part.
template <Mode M, int kParts>
__device__ __forceinline__ void quantizeRows(const Chunk<M> (&made)[kRowsEach][kParts],
                                             const BlockForms<kParts> &targets,
                                             const BlockPlace &at, int half) {
  static_assert(kChunks == 16 && kRowsEach == 4);
  auto mostOf = [&](int r) { return PairMost<M>(made[r][0], made[r][1]); };
  PairMost<M> most[kRowsEach] = {mostOf(0), mostOf(1), mostOf(2), mostOf(3)};
  bool isSecondHalf = at.chunk & 8, isSecondFour = at.chunk & 4;
  PairMost<M> two[2] = {isSecondHalf ? most[2] : most[0], isSecondHalf ? most[3] : most[1]};
  joinNeighbour(two[0], isSecondHalf ? most[0] : most[2], 8);
  joinNeighbour(two[1], isSecondHalf ? most[1] : most[3], 8);
  PairMost<M> one = isSecondFour ? two[1] : two[0];
  joinNeighbour(one, isSecondFour ? two[0] : two[1], 4);
  joinNeighbour(one, one, 2);
  joinNeighbour(one, one, 1);
  int part = at.chunk & 1;
  int64_t first = at.row(half), row = first + at.chunk / 4;
  bool isWriter = (at.chunk & 2) == 0 && row < at.rows;
  float multiplier = multiplierOfBlock<ScaleBlocks::Rows128>(one.of(part), targets.part[part].rows,
                                                             blockIdx.x * at.rows + row, isWriter);
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r)
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const BlockForm &to = targets.part[p];
      float v[kChunk], its = __shfl_sync(0xffffffffu, multiplier, r * 4 + p, kChunks);
      floatsOf<M>(made[r][p], v);
      uint2 codes = convert(to.rows.isE5M2, its, v);
      if (at.has(half, r))
        storeRow<M>(to.rows.q, (first + r) * to.stride + at.col, at.countOf<M>(), codes);
    }
}

/// Computes the multipliers of columns from the amaxes of all threads.
template <Mode M, int kParts>
__device__ __forceinline__ void
findMultipliers(ColumnMost<M> (&most)[kParts], Shared<M, kParts> &shared,
                const BlockForms<kParts> &targets, const BlockPlace &at) {
  constexpr int kPerWord = kChunk / kWords<M>, kWordsOfTile = kChunks * kWords<M>;
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int p = 0; p < kParts; ++p)
#pragma unroll
    for (int i = 0; i < kWords<M>; ++i) {
      unsigned &word = most[p].words[i];
      word = larger<M>(word, __shfl_xor_sync(0xffffffffu, word, kChunks));
      if (lane < kChunks)
        shared.largest[warp][p][at.chunk * kWords<M> + i] = word;
    }
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.x); k < kParts * kWordsOfTile; k += kThreads) {
    int p = kParts == 1 ? 0 : k / kWordsOfTile, i = k % kWordsOfTile;
    unsigned word = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      word = larger<M>(word, shared.largest[w][p][i]);
    const BlockForm &to = targets.part[p];
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
      int64_t col = at.firstCol + i * kPerWord + j;
      unsigned amax = kPerWord == 1 ? word : j == 0 ? word & 0xffffu : word >> 16;
      shared.multipliers[p][i * kPerWord + j] = multiplierOfBlock<ScaleBlocks::Rows128>(
          widened<M>(amax), to.columns, blockIdx.y * to.perBand + col, col < at.cols);
    }
  }
  __syncthreads();
}

/// Four rows of a part for the second pass: read from shared memory, or computed again.
template <Mode M, typename Source, typename Columns>
__device__ __forceinline__ void
takeRows(const Source &source, const Columns &columns, const Shared<M, Source::kParts> &shared,
         const BlockPlace &at, int half, int part, Chunk<M> (&rows)[kRowsEach]) {
  if constexpr (kIsNarrow<M>) {
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
      rows[r].words = shared.parts[part].kept[keptAt(half, r)];
  } else {
    Chunk<M> made[kRowsEach][Source::kParts];
    makeRows<M>(source, columns, shared, at, half, made);
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
      rows[r] = made[r][part];
  }
}

/// Number of blocks that fit on a multiprocessor at a time, limited by registers and shared memory.
template <Mode M, bool kHasRows>
inline constexpr int kResident = !kIsNarrow<M> ? 1
                                 : kHasRows    ? 2
                                               : 4;

template <Mode M, typename Source, bool kHasRows>
__global__ void __launch_bounds__(kThreads, kResident<M, kHasRows>)
    quantizeBlockTile(const __grid_constant__ Source source,
                      const __grid_constant__ BlockForms<Source::kParts> targets, int64_t rows,
                      int64_t cols) {
  awaitPrevious();
  constexpr int kParts = Source::kParts;
  extern __shared__ __align__(16) unsigned char bytes[];
  auto &shared = *reinterpret_cast<Shared<M, kParts> *>(bytes);
  const BlockPlace at = {rows, cols};
  if constexpr (kIsNarrow<M>)
    askForRows<M>(source, shared, at);
  auto columns = source.template columnsOf<M>(at.col, at.count);
  ColumnMost<M> most[kParts];
#pragma unroll 1
  for (int half = 0; half < kHalves; ++half) {
    if constexpr (kIsNarrow<M>)
      half == 0 ? waitForCopies<kHalves - 1>() : waitForCopies<0>();
    Chunk<M> made[kRowsEach][kParts];
    makeRows<M>(source, columns, shared, at, half, made);
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if constexpr (kIsNarrow<M>)
          shared.parts[p].kept[keptAt(half, r)] = made[r][p].words;
        most[p].join(made[r][p]);
      }
    if constexpr (kHasRows)
      quantizeRows<M>(made, targets, at, half);
  }
  findMultipliers<M>(most, shared, targets, at);
  constexpr int kUnrolled = kIsNarrow<M> ? 1 : kParts;
#pragma unroll kUnrolled
  for (int p = 0; p < kParts; ++p) {
    const BlockTarget &to = targets.part[p].columns;
    auto *transposed = shared.parts[p].transposed;
    uint2 codes[kHalves][kRowsEach];
    float multipliers[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      multipliers[j] = shared.multipliers[p][at.chunk * kChunk + j];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      Chunk<M> numbers[kRowsEach];
      takeRows<M>(source, columns, shared, at, half, p, numbers);
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r) {
        float v[kChunk];
        floatsOf<M>(numbers[r], v);
        codes[half][r] = convert(to.isE5M2, multipliers, v);
      }
    }
    __syncthreads(); // all threads have read the kept values
    constexpr int kChunksOfTransposed = kTileCols / kChunk;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      transposed[at.chunk / kChunksOfTransposed].put(at.group(half), at.chunk % kChunksOfTransposed,
                                                     codes[half]);
    __syncthreads();
#pragma unroll 1
    for (int tile = 0; tile < kBlockCols / kTileCols; ++tile)
      transposed[tile].store(to.q, rows, cols, at.firstRow, at.firstCol + tile * kTileCols);
  }
}

/// Enqueues the call. If kHasRows, the first two parts are also written in their own orientation.
template <bool kHasRows, typename Source>
void launchBlockTiles(const Call &call, Mode mode, const Source &source,
                      const BlockForms<Source::kParts> &targets, int64_t rows, int64_t cols) {
  forQuantisedMode(mode, [&]<Mode M>() {
    constexpr size_t kBytes = sizeof(Shared<M, Source::kParts>);
    auto kernel = quantizeBlockTile<M, Source, kHasRows>;
    static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kBytes)));
    launchKernel(kernel, gridOfTiles(rows, cols, kBlockCols / kTileCols), kThreads, kBytes,
                 queueOf(call), source, targets, rows, cols);
  });
}

} // namespace blocktiles
} // namespace shardc::kernels::cuda
