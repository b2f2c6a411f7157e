// Quantises the results of a source to 8 bits, with one scale for each result tensor. Bitwise equal
// to kernels/host/Quantize.cpp. Limited by memory. Mapping: persistent blocks of 256 threads
// process tiles of 128 rows by 64 columns; a thread converts 4 rows of 8 columns. The tile is
// transposed in shared memory in words of 4 rows, so that transposed rows are written 128 bytes at
// a time. While a thread converts rows, asynchronous copies bring its next rows to shared memory.
// Atomics combine the blocks' amaxes; a block skips its atomic if a larger amax is already stored.
#pragma once

#include "kernels/cuda/quantize_sources.cuh"

namespace shardc::kernels::cuda {

/// The destination of one part of a source. Several parts may share a tensor: then they are
/// adjacent in its rows, like gate and up.
struct PartTarget {
  Target to;
  int64_t stride = 0; ///< elements per row of q; 0: the columns of the part
};

/// One destination for each part of a source.
template <int kParts> struct PartTargets { PartTarget part[kParts]; };

constexpr int kTileThreads = 256;

/// A thread's chunks in a tile: kRowsEach consecutive rows from row(0) on, in one chunk of columns.
struct TilePlace {
  int64_t rows, cols;
  int64_t firstRow = 0, firstCol = 0;
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int chunk = static_cast<int>(threadIdx.x) % (kTileCols / kChunk);
  bool isThere = false;

  __device__ __forceinline__ TilePlace(int64_t rows, int64_t cols) : rows(rows), cols(cols) {}

  /// Sets the tile with this number, of `tiles`, of which `across` lie side by side. Beyond the
  /// last one, nothing is there.
  __device__ __forceinline__ void moveTo(unsigned tile, unsigned across, unsigned tiles) {
    isThere = tile < tiles;
    firstRow = static_cast<int64_t>(tile / across) * kTileRows;
    firstCol = static_cast<int64_t>(tile % across) * kTileCols;
  }
  /// Row and column of the thread's r-th chunk in the matrix.
  __device__ __forceinline__ int64_t row(int r) const { return firstRow + group * kRowsEach + r; }
  __device__ __forceinline__ int64_t col() const { return firstCol + chunk * kChunk; }
  /// Number of valid columns of the chunk in row r; 0 outside the matrix.
  __device__ __forceinline__ int count(int r) const {
    int64_t left = cols - col();
    if (!isThere || left <= 0 || row(r) >= rows)
      return 0;
    return left < kChunk ? static_cast<int>(left) : kChunk;
  }
};

/// Prefetches a thread's rows to shared memory. ask() starts the copy of a row, and take() waits
/// for the oldest one; at most kRows copies are in flight. Only used for 16-bit types; in other
/// modes, take() reads from global memory.
template <Mode M, typename Source> class RowsAhead {
public:
  static constexpr int kRows = 2; ///< in flight at a time
  using Slots = uint4[kRows][Source::kReads][kTileThreads];
  static constexpr size_t kBytes = kIsNarrow<M> ? sizeof(Slots) : 0;

  __device__ __forceinline__ RowsAhead(const Source &source, void *shared)
      : source_(source), slots_(*static_cast<Slots *>(shared)) {}

  /// Callers must ask for rows in the order in which they take them.
  __device__ __forceinline__ void ask(const TilePlace &place, int r) {
    if constexpr (kIsNarrow<M>) {
      if (place.count(r) > 0)
#pragma unroll
        for (int i = 0; i < Source::kReads; ++i) {
          Spot spot = source_.at(i, place.row(r), place.col());
          copyAhead(&slots_[r % kRows][i][threadIdx.x], chunkOf(spot.data, spot.index));
        }
      endCopies();
    }
  }

  /// Waits for row r and returns its chunks; leaves them unchanged outside the matrix.
  __device__ __forceinline__ void take(const TilePlace &place, int r,
                                       Chunk<M> (&read)[Source::kReads]) {
    if constexpr (kIsNarrow<M>)
      waitForCopies<kRows - 1>();
    if (place.count(r) == 0)
      return;
#pragma unroll
    for (int i = 0; i < Source::kReads; ++i) {
      if constexpr (kIsNarrow<M>) {
        read[i].words = slots_[r % kRows][i][threadIdx.x];
      } else {
        Spot spot = source_.at(i, place.row(r), place.col());
        read[i] = readChunk<M>(spot.data, spot.index, place.count(r));
      }
    }
  }

private:
  const Source &source_;
  Slots &slots_;
};

/// Bytes of shared memory of quantizeTile().
template <Mode M, typename Source>
constexpr size_t
    kTileBytes = Source::kParts * sizeof(TransposedTile) + RowsAhead<M, Source>::kBytes;

/// Quantises all parts of the source, a matrix [rows, cols], of which `tiles` tiles lie `across` in
/// a row. The amax of each target decides its multiplier; the first block stores the scale. If
/// `seen` is set, it becomes the largest amax of what it was and of this tensor.
template <Mode M, typename Source>
__global__ void __launch_bounds__(kTileThreads)
    quantizeTile(const __grid_constant__ Source source,
                 const __grid_constant__ PartTargets<Source::kParts> targets, int64_t rows,
                 int64_t cols, unsigned across, unsigned tiles) {
  awaitPrevious();
  constexpr int kParts = Source::kParts;
  extern __shared__ __align__(16) unsigned char memory[];
  auto *transposed = reinterpret_cast<TransposedTile *>(memory);
  RowsAhead<M, Source> ahead(source, memory + kParts * sizeof(TransposedTile));
  float multipliers[kParts];
  Amax<M> most[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    multipliers[p] = multiplierOf(*targets.part[p].to.amax, targets.part[p].to.isE5M2);
  TilePlace place(rows, cols), next(rows, cols);
  place.moveTo(blockIdx.x, across, tiles);
#pragma unroll
  for (int r = 0; r < ahead.kRows; ++r)
    ahead.ask(place, r);
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    next.moveTo(tile + gridDim.x, across, tiles);
    auto columns = source.template columnsOf<M>(place.col(), place.count(0));
    uint2 codes[kParts][kRowsEach] = {};
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      Chunk<M> read[Source::kReads], made[kParts];
      ahead.take(place, r, read);
      constexpr int kAhead = RowsAhead<M, Source>::kRows;
      ahead.ask(r + kAhead < kRowsEach ? place : next, (r + kAhead) % kRowsEach);
      int n = place.count(r);
      if (n == 0)
        continue;
      source.template make<M>(read, place.row(r), columns, made);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const PartTarget &part = targets.part[p];
        codes[p][r] = codesOf<M>(part.to, multipliers[p], made[p], most[p]);
        if (part.to.q)
          storeRow<M>(part.to.q, place.row(r) * (part.stride ? part.stride : cols) + place.col(), n,
                      codes[p][r]);
      }
    }
    __syncthreads(); // the previous tile has been written
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      if (targets.part[p].to.t)
        transposed[p].put(place.group, place.chunk, codes[p]);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      if (targets.part[p].to.t)
        transposed[p].store(targets.part[p].to.t, rows, cols, place.firstRow, place.firstCol);
    place = next;
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const Target &to = targets.part[p].to;
    if (to.seen)
      joinLargest(most[p].bits(), to.seen);
    if (blockIdx.x == 0 && threadIdx.x == 0)
      *to.scale = reciprocal(multipliers[p]);
  }
}

/// Enqueues quantizeTile(). `mode` must be modeOf() of all matrices that the source reads.
template <typename Source>
void launchTiles(const Call &call, Mode mode, const Source &source,
                 const PartTargets<Source::kParts> &targets, int64_t rows, int64_t cols) {
  auto across = static_cast<unsigned>(ceilDiv(cols, kTileCols));
  auto tiles = static_cast<unsigned>(across * ceilDiv(rows, kTileRows));
  forQuantisedMode(mode, [&]<Mode M>() {
    constexpr size_t kShared = kTileBytes<M, Source>;
    auto kernel = quantizeTile<M, Source>;
    static const unsigned most = [&] {
      static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(kShared)));
      return persistentGrid(kernel, kTileThreads, kShared, INT32_MAX);
    }();
    launchKernel(kernel, std::min(tiles, most), kTileThreads, kShared, queueOf(call), source,
                 targets, rows, cols, across, tiles);
  });
}

// ---- amaxes alone ----

/// The destination of each part's amax, as the bits of a float. Parts of one tensor share it.
template <int kParts> struct PartLargest { unsigned *part[kParts]; };

/// Raises the destinations to the amaxes of one tile's parts. Each block has one tile and reads it
/// once; nothing else is stored.
template <Mode M, typename Source>
__global__ void __launch_bounds__(kTileThreads)
    findLargestOfTile(const __grid_constant__ Source source,
                      const __grid_constant__ PartLargest<Source::kParts> largest, int64_t rows,
                      int64_t cols, unsigned across, unsigned tiles) {
  awaitPrevious();
  constexpr int kParts = Source::kParts;
  TilePlace place(rows, cols);
  place.moveTo(blockIdx.x, across, tiles);
  auto columns = source.template columnsOf<M>(place.col(), place.count(0));
  Chunk<M> read[kRowsEach][Source::kReads], made[kParts];
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r)
#pragma unroll
    for (int i = 0; i < Source::kReads; ++i)
      if (int n = place.count(r)) {
        Spot spot = source.at(i, place.row(r), place.col());
        read[r][i] = readChunk<M>(spot.data, spot.index, n);
      }
  Amax<M> most[kParts];
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    if (place.count(r) == 0)
      continue;
    source.template make<M>(read[r], place.row(r), columns, made);
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      most[p].join(made[p]);
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    joinLargest(most[p].bits(), largest.part[p]);
}

/// Enqueues findLargestOfTile() for all tiles of a matrix [rows, cols].
template <typename Source>
void launchLargest(const Call &call, Mode mode, const Source &source,
                   const PartLargest<Source::kParts> &largest, int64_t rows, int64_t cols) {
  auto across = static_cast<unsigned>(ceilDiv(cols, kTileCols));
  auto tiles = static_cast<unsigned>(across * ceilDiv(rows, kTileRows));
  forQuantisedMode(mode, [&]<Mode M>() {
    launchKernel(findLargestOfTile<M, Source>, tiles, kTileThreads, 0, queueOf(call), source,
                 largest, rows, cols, across, tiles);
  });
}

} // namespace shardc::kernels::cuda
