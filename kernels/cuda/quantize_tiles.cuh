// Quantises what a source makes, with one scale for each of its tensors, to the bit what
// kernels/host/Quantize.cpp does. Mapping: a block takes a tile of 128 rows by 64 columns; a thread
// converts 4 rows of 8 columns, and the tile is turned in shared memory as words of 4 rows, so that
// rows of a transpose are written 128 bytes at a time. Largest magnitudes of blocks meet in one
// atomic, and in none where a larger one is known already.
//
// A source makes kParts matrices at once, of the same extents, rounded as they would be stored:
//   load<M>(row, column, count up to 8, values[kParts][8])
#pragma once

#include "kernels/cuda/quantize.cuh"

namespace shardc::kernels::cuda {

/// Where a part goes. Parts of one tensor lie beside each other in its rows.
struct PartTarget {
  Target to;
  int64_t stride = 0; ///< elements of a row of q; 0: as many as the part has columns
};

template <int kParts> struct PartTargets { PartTarget part[kParts]; };

template <Mode M, typename Source>
__global__ void __launch_bounds__(256)
    quantizeTile(const Source source, const PartTargets<Source::kParts> targets, int64_t rows,
                 int64_t cols) {
  awaitPrevious();
  constexpr int kParts = Source::kParts;
  __shared__ TurnedTile tile;
  float multipliers[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    multipliers[p] = multiplierOf(*targets.part[p].to.amax, targets.part[p].to.isE5M2);
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int chunk = static_cast<int>(threadIdx.x) % (kTileCols / kChunk);
  int64_t firstRow = static_cast<int64_t>(blockIdx.y) * kTileRows;
  int64_t firstCol = static_cast<int64_t>(blockIdx.x) * kTileCols;
  int64_t col = firstCol + chunk * kChunk;
  int n = static_cast<int>(cols - col < kChunk ? cols - col : kChunk);
  uint2 codes[kParts][kRowsEach] = {};
  unsigned most[kParts] = {};
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    int64_t row = firstRow + group * kRowsEach + r;
    if (row >= rows || n <= 0)
      continue;
    float v[kParts][kChunk];
    source.template load<M>(row, col, n, v);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const PartTarget &part = targets.part[p];
      codes[p][r] = codesOf(part.to, multipliers[p], v[p], most[p]);
      if (part.to.q)
        storeRow<M>(part.to.q, row * (part.stride ? part.stride : cols) + col, n, codes[p][r]);
    }
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const Target &to = targets.part[p].to;
    if (to.t) {
      if (p > 0)
        __syncthreads(); // the tile before is written
      tile.put(group, chunk, codes[p]);
      __syncthreads();
      tile.store(to.t, rows, cols, firstRow, firstCol);
    }
    if (to.seen)
      joinLargest(most[p], to.seen);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
      *to.scale = reciprocal(multipliers[p]);
  }
}

template <typename Source>
void launchTiles(const Call &call, Mode mode, const Source &source,
                 const PartTargets<Source::kParts> &targets, int64_t rows, int64_t cols) {
  forMode(mode, [&]<Mode M>() {
    launchKernel(quantizeTile<M, Source>, gridOfTiles(rows, cols), 256, 0, queueOf(call), source,
                 targets, rows, cols);
  });
}

// ---- magnitudes alone ----

/// Where the largest magnitude of each part goes; parts of one tensor have the same place.
template <int kParts> struct PartLargest { unsigned *part[kParts]; };

template <Mode M, typename Source>
__global__ void __launch_bounds__(256)
    findLargestOfTile(const Source source, const PartLargest<Source::kParts> largest, int64_t rows,
                      int64_t cols) {
  awaitPrevious();
  constexpr int kParts = Source::kParts;
  int group = static_cast<int>(threadIdx.x) / (kTileCols / kChunk);
  int64_t col = static_cast<int64_t>(blockIdx.x) * kTileCols +
                static_cast<int>(threadIdx.x) % (kTileCols / kChunk) * kChunk;
  int n = static_cast<int>(cols - col < kChunk ? cols - col : kChunk);
  unsigned most[kParts] = {};
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    int64_t row = static_cast<int64_t>(blockIdx.y) * kTileRows + group * kRowsEach + r;
    if (row >= rows || n <= 0)
      continue;
    float v[kParts][kChunk];
    source.template load<M>(row, col, n, v);
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      most[p] = largestOf(most[p], v[p]);
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    joinLargest(most[p], largest.part[p]);
}

template <typename Source>
void launchLargest(const Call &call, Mode mode, const Source &source,
                   const PartLargest<Source::kParts> &largest, int64_t rows, int64_t cols) {
  forMode(mode, [&]<Mode M>() {
    launchKernel(findLargestOfTile<M, Source>, gridOfTiles(rows, cols), 256, 0, queueOf(call),
                 source, largest, rows, cols);
  });
}

} // namespace shardc::kernels::cuda
