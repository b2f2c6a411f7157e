// grouped_matmul and grouped_matmul_bwd with operands that are first quantised to 8 bits. Codes and
// scales are bitwise equal to those of kernels/host/GroupedFloat8.cpp; products of codes are added
// in fp32. Codes and scales are in scratch. The rows of a product keep their order. Matrices are
// stored along k. The rows of a gradient are transposed and sorted by group, so that each sum reads
// contiguous numbers and blocks that share a scale begin where groups begin.
// grouped_float8_tiles.cu multiplies on Hopper, the plain kernel on other GPUs. Limited by memory:
// each operand is read once (twice with scales of groups by current amaxes) and written as codes.
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/grouped_plain.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/quantize_blocks.cuh"

namespace shardc::kernels::cuda {
namespace {

__host__ __device__ constexpr int64_t alignedDepth(int64_t n) {
  return (n + kDepthBlock - 1) / kDepthBlock * kDepthBlock;
}

// ---- which row is where ----

/// Maps places, the rows of an operand's codes, to rows of the operand. Places of transposed
/// matrices are padded to multiples of kDepthBlock.
struct Places {
  const int32_t *rows;   ///< row of each place, or -1; null: the rows keep their order
  const int32_t *groups; ///< group of each `together` places, or -1; null: matrices
  int64_t together;
  int64_t matrixRows, aligned; ///< rows of a matrix, and its places with padding
  int64_t count;

  __device__ __forceinline__ int64_t groupOf(int64_t place) const {
    return groups ? groups[place / together] : place / aligned;
  }
  __device__ __forceinline__ int64_t rowOf(int64_t place) const {
    if (rows)
      return rows[place];
    if (groups)
      return groups[place] < 0 ? -1 : place;
    int64_t inside = place % aligned;
    return inside < matrixRows ? place / aligned * matrixRows + inside : -1;
  }
};

constexpr int kListThreads = 1024;

/// Lists the begin and end of each group if rows are sorted by group and each group begins at a
/// multiple of kDepthBlock.
__global__ void __launch_bounds__(kListThreads)
    listTransposed(const GroupList list, const GroupList transposed, int64_t slots,
                   int64_t groups) {
  awaitPrevious();
  using Scan = cub::BlockScan<int64_t, kListThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t before = 0;
  for (int64_t base = 0; base < groups; base += kListThreads) {
    int64_t group = base + threadIdx.x, rows = 0, begin = 0, sum = 0;
    if (group < groups)
      for (int64_t i = group; i < slots * groups; i += groups)
        rows += list.ends[i] - list.begins[i];
    Scan(storage).ExclusiveSum(alignedDepth(rows), begin, sum);
    if (group < groups) {
      transposed.begins[group] = static_cast<int32_t>(before + begin);
      transposed.ends[group] = static_cast<int32_t>(before + begin + rows);
      transposed.firstItems[group] = 0; // not used: the work items of a gradient have fixed places
    }
    before += sum;
    __syncthreads();
  }
  if (threadIdx.x == 0)
    transposed.firstItems[groups] = 0;
}

/// The last of the groups [first, first + count) that begins at or before `at`; -1 if there is
/// none.
__device__ int64_t lastBegun(const GroupList &list, int64_t first, int64_t count, int64_t at) {
  int64_t inside = first - 1, outside = first + count;
  while (outside - inside > 1) {
    int64_t middle = (inside + outside) / 2;
    (list.begins[middle] <= at ? inside : outside) = middle;
  }
  return inside < first ? -1 : inside;
}

struct Mapping {
  GroupList list, transposed;
  int64_t slots, groups, slotRows;
  int32_t *rows, *groupsOf;
  unsigned *largest; ///< amax of each group, for both operands; cleared here
  int64_t places;
};

/// Unsorted: writes the group of each row. Sorted: writes the row of each place, and the group of
/// each block of places.
template <bool kIsSorted> __global__ void __launch_bounds__(256) mapPlaces(const Mapping p) {
  awaitPrevious();
  int64_t place = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (place < 2 * p.groups)
    p.largest[place] = 0;
  if (place >= p.places)
    return;
  if constexpr (kIsSorted) {
    int64_t group = max(lastBegun(p.transposed, 0, p.groups, place), int64_t{0});
    int64_t offset = place - p.transposed.begins[group], row = -1;
    for (int64_t i = group; row < 0 && i < p.slots * p.groups; i += p.groups) {
      int64_t rows = p.list.ends[i] - p.list.begins[i];
      if (offset < rows)
        row = p.list.begins[i] + offset;
      offset -= rows;
    }
    p.rows[place] = static_cast<int32_t>(row);
    if (place % kDepthBlock == 0)
      p.groupsOf[place / kDepthBlock] = static_cast<int32_t>(group);
  } else {
    int64_t slot = place / p.slotRows, at = lastBegun(p.list, slot * p.groups, p.groups, place);
    bool isThere = at >= 0 && place < p.list.ends[at];
    p.groupsOf[place] = isThere ? static_cast<int32_t>(at % p.groups) : -1;
  }
}

// ---- codes ----

/// An operand, and the destination of its codes.
struct Source {
  Data x;
  int64_t cols;
  Places places;
  unsigned *largest;     ///< amaxes of groups; only for scales of groups
  const float *expected; ///< amaxes of groups for delayed scaling; null: `largest`
  unsigned *seen;        ///< where to record amaxes; null: nowhere
  Factor8 to;
};

/// Finds the amaxes of groups. Each place has its own block.
template <Mode M> __global__ void __launch_bounds__(256) findLargest(const Source s) {
  awaitPrevious();
  int64_t row = s.places.rowOf(blockIdx.x);
  if (row < 0)
    return;
  unsigned most = 0;
  for (int64_t c = int64_t{threadIdx.x} * kChunk; c < s.cols; c += int64_t{blockDim.x} * kChunk) {
    float v[kChunk];
    load8<M>(s.x, row * s.cols + c, upToChunk(s.cols - c), v);
    most = largestOf(most, v);
  }
  joinLargest(most, s.largest + s.places.groupOf(blockIdx.x));
}

/// The multiplier of a group. `isWriter` also stores the scale.
__device__ __forceinline__ float multiplierOfGroup(const Source &s, int64_t group, bool isWriter) {
  float amax = s.expected ? s.expected[group] : __uint_as_float(s.largest[group]);
  float multiplier = multiplierOf(amax, s.to.isE5M2);
  if (isWriter)
    static_cast<float *>(s.to.scales)[group] = reciprocal(multiplier);
  return multiplier;
}

/// Quantises rows in their order, with scales of groups or of blocks within rows.
template <Mode M, Scaling kScaling>
__global__ void __launch_bounds__(256) codeRows(const Source s) {
  awaitPrevious();
  int64_t place = blockIdx.x, row = s.places.rowOf(place);
  if (row < 0)
    return;
  int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kChunk;
  int n = static_cast<int>(max(min(s.cols - c, int64_t{kChunk}), int64_t{0}));
  float v[kChunk];
  load8<M>(s.x, row * s.cols + c, n, v);
  float multiplier;
  if constexpr (kScaling == Scaling::Group) {
    int64_t group = s.places.groupOf(place);
    multiplier = multiplierOfGroup(s, group, c == 0);
    if (s.seen)
      joinLargest(largestOf(0, v), s.seen + group);
    if (s.expected)
      markLost(v);
  } else {
    constexpr ScaleBlocks kBlocks =
        kScaling == Scaling::Rows32 ? ScaleBlocks::Rows32 : ScaleBlocks::Rows128;
    constexpr int kNumbers = kScaling == Scaling::Rows32 ? 32 : 128, kTeam = kNumbers / kChunk;
    unsigned most = largestOf(0, v);
#pragma unroll
    for (int offset = kTeam / 2; offset > 0; offset /= 2)
      most = max(most, __shfl_xor_sync(0xffffffffu, most, offset));
    bool isWriter = threadIdx.x % kTeam == 0 && c < s.to.depth;
    multiplier = multiplierOfBlock<kBlocks>(most, {nullptr, s.to.scales, s.to.isE5M2},
                                            c / kNumbers * s.to.rows + place, isWriter);
  }
  if (c < s.to.depth)
    *reinterpret_cast<uint2 *>(s.to.codes + place * s.to.depth + c) =
        convert(s.to.isE5M2, multiplier, v);
}

constexpr int kEdge = kDepthBlock; ///< rows and columns of a tile
static_assert(kEdge == kTileRows && kEdge == 2 * kTileCols,
              "a tile consists of two tiles of the transposition");

/// The amaxes of a tile: the amax of the whole tile, or the amaxes of each column by 32 or 128
/// places.
struct TileLargest {
  unsigned whole, columns[kEdge / 32][kEdge];
};

/// A thread's elements in both halves of a tile.
using TileNumbers = float[2][kRowsEach][kChunk];

/// The position of a block's tile, and of a thread in it.
struct TileSpot {
  bool isMatrix;
  int64_t group, inside, place, col; ///< first place in the matrix, or in the operand; column
  int rowGroup, chunk; ///< rows from rowGroup·kRowsEach on, columns from chunk·kChunk on

  __device__ __forceinline__ explicit TileSpot(const Source &s)
      : isMatrix(s.places.groups == nullptr), col(int64_t{blockIdx.y} * kEdge),
        rowGroup(static_cast<int>(threadIdx.x) / 8), chunk(static_cast<int>(threadIdx.x) % 8) {
    place = inside = int64_t{blockIdx.x} * kEdge;
    if (isMatrix) { // tiles of matrices that are not transposed end with the matrix
      int64_t tiles = (s.places.aligned + kEdge - 1) / kEdge;
      group = blockIdx.x / tiles, inside = blockIdx.x % tiles * kEdge;
      place = group * s.places.aligned + inside;
    } else {
      group = s.places.groupOf(place);
    }
  }
  __device__ __forceinline__ int row(int r) const { return rowGroup * kRowsEach + r; }
  __device__ __forceinline__ int colOf(int half) const { return half * kTileCols + chunk * kChunk; }
  /// Number of rows of each matrix of an operand; 0 for operands of gradients, which have no
  /// matrices.
  __device__ __forceinline__ int64_t rowsOfMatrix(const Source &s) const {
    return isMatrix ? s.to.rows / (s.places.count / s.places.aligned) : 0;
  }
};

template <Mode M>
__device__ __forceinline__ void loadTile(const Source &s, const TileSpot &at, TileNumbers &v) {
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    bool isThere = at.isMatrix ? at.inside + at.row(r) < s.places.aligned
                               : at.place + at.row(r) < s.places.count;
    int64_t row = isThere ? s.places.rowOf(at.place + at.row(r)) : -1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int64_t c = at.col + at.colOf(h);
      int n = row < 0 ? 0 : static_cast<int>(max(min(s.cols - c, int64_t{kChunk}), int64_t{0}));
      load8<M>(s.x, row * s.cols + c, n, v[h][r]);
    }
  }
}

/// Index of the column amax to which a thread's rows contribute.
__device__ __forceinline__ int partOf(Scaling scaling, const TileSpot &at) {
  return scaling == Scaling::Rows32 ? at.row(0) / 32 : 0;
}

/// With delayed scaling, records the amax of the block's tile.
__device__ __forceinline__ void seeTile(const Source &s, const TileSpot &at, TileNumbers &v) {
  unsigned most = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      most = largestOf(most, v[h][r]);
      markLost(v[h][r]);
    }
  if (s.seen)
    joinLargest(most, s.seen + at.group);
}

__device__ __forceinline__ void findTileLargest(Scaling scaling, const TileSpot &at,
                                                const TileNumbers &v, TileLargest &largest) {
  for (int i = static_cast<int>(threadIdx.x); i < kEdge / 32 * kEdge; i += 256)
    largest.columns[i / kEdge][i % kEdge] = 0;
  if (threadIdx.x == 0)
    largest.whole = 0;
  __syncthreads();
  if (scaling == Scaling::Squares) {
    unsigned most = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r)
        most = largestOf(most, v[h][r]);
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % kWarp == 0)
      atomicMax(&largest.whole, most);
  } else if (scaling != Scaling::Group) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        unsigned most = 0;
#pragma unroll
        for (int r = 0; r < kRowsEach; ++r)
          most = max(most, __float_as_uint(v[h][r][j]) & 0x7fffffffu);
        atomicMax(&largest.columns[partOf(scaling, at)][at.colOf(h) + j], most);
      }
  }
  __syncthreads();
}

/// The multiplier of the whole tile. One thread stores its scale.
template <bool kIsTransposed>
__device__ __forceinline__ float multiplierOfTile(const Source &s, const TileSpot &at,
                                                  const TileLargest &largest) {
  if (s.to.scaling == Scaling::Group)
    return multiplierOfGroup(s, at.group, threadIdx.x == 0);
  int64_t depthTile = kIsTransposed ? at.inside / kEdge : blockIdx.y;
  int64_t rowTile = kIsTransposed ? blockIdx.y : at.inside / kEdge;
  int64_t tiles = (at.rowsOfMatrix(s) + kEdge - 1) / kEdge;
  int64_t index = (at.group * tiles + rowTile) * (s.to.depth / kDepthBlock) + depthTile;
  return multiplierOfBlock<ScaleBlocks::Squares128>(
      largest.whole, {nullptr, s.to.scales, s.to.isE5M2}, index, threadIdx.x == 0);
}

/// The multiplier of a column. The first thread in each block of places stores the scale.
__device__ __forceinline__ float multiplierOfColumn(const Source &s, const TileSpot &at,
                                                    const TileLargest &largest, int colOfTile) {
  bool isSmall = s.to.scaling == Scaling::Rows32;
  int part = partOf(s.to.scaling, at);
  int64_t col = at.col + colOfTile, block = isSmall ? at.inside / 32 + part : at.inside / kEdge;
  int64_t index = block * s.to.rows + at.group * at.rowsOfMatrix(s) + col;
  bool isWriter = at.row(0) % (isSmall ? 32 : kEdge) == 0 && col < s.cols;
  unsigned most = largest.columns[part][colOfTile];
  BlockTarget scales = {nullptr, s.to.scales, s.to.isE5M2};
  return isSmall ? multiplierOfBlock<ScaleBlocks::Rows32>(most, scales, index, isWriter)
                 : multiplierOfBlock<ScaleBlocks::Rows128>(most, scales, index, isWriter);
}

/// Quantises tiles, optionally transposed. Scales belong to groups, to tiles (Squares), or, if
/// transposed, to columns of 128 or 32 places (Rows128 and Rows32 of the transposed operand).
template <Mode M, bool kIsTransposed>
__global__ void __launch_bounds__(256) codeTiles(const Source s) {
  awaitPrevious();
  __shared__ TileLargest largest;
  __shared__ TransposedTile transposed;
  TileSpot at(s);
  TileNumbers v;
  loadTile<M>(s, at, v);
  if (s.expected)
    seeTile(s, at, v);
  findTileLargest(s.to.scaling, at, v, largest);
  bool isWhole = s.to.scaling == Scaling::Group || s.to.scaling == Scaling::Squares;
  float whole = isWhole ? multiplierOfTile<kIsTransposed>(s, at, largest) : 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float multipliers[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      multipliers[j] = isWhole ? whole : multiplierOfColumn(s, at, largest, at.colOf(h) + j);
    uint2 codes[kRowsEach];
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r)
      codes[r] = convert(s.to.isE5M2, multipliers, v[h][r]);
    if constexpr (kIsTransposed) {
      transposed.put(at.rowGroup, at.chunk, codes);
      __syncthreads();
      transposed.store(s.to.codes + at.group * at.rowsOfMatrix(s) * s.to.depth, s.to.depth, s.cols,
                       at.inside, at.col + h * kTileCols);
      __syncthreads();
    } else {
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r)
        if (at.inside + at.row(r) < s.places.aligned)
          *reinterpret_cast<uint2 *>(s.to.codes + (at.place + at.row(r)) * s.to.depth + at.col +
                                     at.colOf(h)) = codes[r];
    }
  }
}

// ---- codes that are there already ----

/// Matrices of 8-bit codes [rows, cols], one after the other, each with its scale.
struct StoredMatrices {
  const uint8_t *codes;
  const float *scales;
  int64_t scaleStride, rows, cols;
  Factor8 to;
};

constexpr int kSquare = 64; ///< rows and columns of codes that a block copies

/// Copies codes so that they are contiguous along k, padded with zeros. A block copies the rows
/// from 64·y on and the columns from 64·x on of matrix z.
template <bool kIsTransposed>
__global__ void __launch_bounds__(256) layCodes(const StoredMatrices s) {
  awaitPrevious();
  __shared__ uint8_t square[kSquare][kSquare + 4];
  int64_t group = blockIdx.z, row = int64_t{blockIdx.y} * kSquare,
          col = int64_t{blockIdx.x} * kSquare;
  int inRow = static_cast<int>(threadIdx.x) % kSquare;
  for (int r = static_cast<int>(threadIdx.x) / kSquare; r < kSquare; r += 256 / kSquare) {
    bool isThere = row + r < s.rows && col + inRow < s.cols;
    square[r][inRow] =
        isThere ? s.codes[(group * s.rows + row + r) * s.cols + col + inRow] : uint8_t{0};
  }
  __syncthreads();
  int64_t firstRow = kIsTransposed ? col : row, firstAt = kIsTransposed ? row : col;
  int64_t rowsOfGroup = kIsTransposed ? s.cols : s.rows, at = firstAt + inRow;
  for (int r = static_cast<int>(threadIdx.x) / kSquare; r < kSquare; r += 256 / kSquare)
    if (firstRow + r < rowsOfGroup && at < s.to.depth)
      s.to.codes[(group * rowsOfGroup + firstRow + r) * s.to.depth + at] =
          kIsTransposed ? square[inRow][r] : square[r][inRow];
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    static_cast<float *>(s.to.scales)[group] = s.scales[group * s.scaleStride];
}

// ---- the plain kernel's numbers ----

__device__ __forceinline__ float numberOf(uint8_t code, bool isE5M2) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, isE5M2 ? __NV_E5M2 : __NV_E4M3)));
}

/// Operands in 8 bits as numbers, for the plain kernel: each element times the scale of its group,
/// row or block.
struct Numbers8 {
  Factor8 x, y;
  int64_t m, groups;
  static constexpr bool isAlongK = true;

  static __device__ float e8m0(uint8_t code) {
    return code == 255 ? __uint_as_float(kNan)
                       : __uint_as_float(code == 0 ? 0x400000u : static_cast<unsigned>(code) << 23);
  }
  __device__ float number(const Factor8 &f, int64_t group, int64_t row, int64_t at) const {
    float scale = 1.0f;
    auto *scales = static_cast<const float *>(f.scales);
    if (f.scaling == Scaling::Group)
      scale = scales[group];
    else if (f.scaling == Scaling::Rows128)
      scale = scales[at / 128 * f.rows + row];
    else if (f.scaling == Scaling::Rows32)
      scale = e8m0(static_cast<const uint8_t *>(f.scales)[at / 32 * f.rows + row]);
    else
      scale = scales[(group * ((m + 127) / 128) + (row - group * m) / 128) * (f.depth / 128) +
                     at / 128];
    return numberOf(f.codes[row * f.depth + at], f.isE5M2) * scale;
  }
  __device__ float a(int64_t group, int64_t row, int64_t at) const {
    return number(x, group, row, at);
  }
  __device__ float b(int64_t group, int64_t at, int64_t col) const {
    return number(y, group, group * m + col, at);
  }
  __device__ float first(int64_t group, int64_t row, int64_t col) const {
    return number(x, group, col, row);
  }
  __device__ float second(int64_t group, int64_t row, int64_t col) const {
    return number(y, group, col, row);
  }
};

// ---- calls ----

/// The scratch of a call, and how its operands are scaled.
struct Buffers8 {
  Grouped8 g;
  GroupList list;
  int64_t places;
  int32_t *rows = nullptr, *groups;
  unsigned *largest;

  Buffers8(const Call &call, bool isGradient, Scratch &scratch)
      : g{Grouped(call, isGradient), {}, {}, {}}, list(call, scratch) {
    const Grouped &c = g.call;
    auto recipe = static_cast<Fp8Factors>(call.attrs.fp8_recipe);
    Scaling ofRows = isScaledWhole(recipe)         ? Scaling::Group
                     : recipe == Fp8Factors::Mxfp8 ? Scaling::Rows32
                                                   : Scaling::Rows128;
    Scaling ofMatrices = ofRows == Scaling::Rows128 ? Scaling::Squares : ofRows;
    largest = scratch.take<unsigned>(2 * c.groups);
    if (isGradient) {
      places = alignedDepth(c.rows) + c.groups * kDepthBlock;
      g.list = list;
      g.list.begins = scratch.take<int32_t>(c.groups);
      g.list.ends = scratch.take<int32_t>(c.groups);
      g.list.firstItems = scratch.take<int32_t>(c.groups + 1);
      rows = scratch.take<int32_t>(places);
      groups = scratch.take<int32_t>(places / kDepthBlock);
      g.a = take(scratch, c.k, places, ofRows);
      g.b = take(scratch, c.m, places, ofRows);
    } else {
      places = c.rows;
      g.list = list;
      groups = scratch.take<int32_t>(places);
      g.a = take(scratch, c.rows, alignedDepth(c.k), ofRows);
      g.b = take(scratch, c.groups * c.m, alignedDepth(c.k), ofMatrices);
    }
    g.a.isE5M2 = call.attrs.e5m2;
  }

private:
  Factor8 take(Scratch &scratch, int64_t rowCount, int64_t depth, Scaling scaling) const {
    Factor8 f = {scratch.take<uint8_t>(rowCount * depth), nullptr, rowCount, depth, scaling, false};
    int64_t groupCount = g.call.groups, blocks = depth / kDepthBlock;
    if (scaling == Scaling::Group)
      f.scales = scratch.take<float>(groupCount);
    else if (scaling == Scaling::Rows128)
      f.scales = scratch.take<float>(rowCount * blocks);
    else if (scaling == Scaling::Rows32)
      f.scales = scratch.take<uint8_t>(rowCount * blocks * 4);
    else
      f.scales = scratch.take<float>(groupCount * ((g.call.m + 127) / 128) * blocks);
    return f;
  }
};

template <bool kIsGradient> struct BuffersOf : Buffers8 {
  BuffersOf(const Call &call, Scratch &scratch) : Buffers8(call, kIsGradient, scratch) {}
};

/// The amaxes of an operand's groups: memory for the current ones, those expected by delayed
/// scaling, and where to record the current ones. The last two may be null.
struct Amaxes {
  unsigned *largest;
  const float *expected;
  unsigned *seen;

  /// `slot`: index of the operand's first amax in delayed scaling, before the offset of this
  /// member's groups. `amax`: index of the first operand of delayed scaling.
  Amaxes(const Call &call, int amax, int64_t slot, unsigned *largest_)
      : largest(largest_), expected(nullptr), seen(nullptr) {
    int64_t first = slot + call.index * call.in[2].shape[1];
    if (call.inCount > amax)
      expected = static_cast<const float *>(call.in[amax].data) + first;
    if (call.outCount > 1)
      seen = static_cast<unsigned *>(call.out[1].data) + first;
  }
};

void code(const Tensor &x, const Places &places, const Amaxes &of, const Factor8 &to,
          bool isTransposed, Queue &queue) {
  Source s = {dataOf(x), x.cols(), places, of.largest, of.expected, of.seen, to};
  bool byTiles = isTransposed || to.scaling == Scaling::Squares;
  forQuantisedMode(modeOf({&x}, x.cols()), [&]<Mode M>() {
    auto count = static_cast<unsigned>(places.count);
    if (to.scaling == Scaling::Group && !of.expected)
      launchKernel(findLargest<M>, count, threadsForRow(s.cols, 256), 0, queue, s);
    if (byTiles) {
      int64_t tiles = places.groups
                          ? ceilDiv(places.count, kEdge)
                          : places.count / places.aligned * ceilDiv(places.aligned, kEdge);
      dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(ceilDiv(s.cols, kEdge)));
      launchKernel(isTransposed ? codeTiles<M, true> : codeTiles<M, false>, grid, 256, 0, queue, s);
      return;
    }
    int threads = threadsForRow(to.depth, 256);
    dim3 grid(count, static_cast<unsigned>(ceilDiv(to.depth, int64_t{threads} * kChunk)));
    auto *kernel = to.scaling == Scaling::Group     ? codeRows<M, Scaling::Group>
                   : to.scaling == Scaling::Rows128 ? codeRows<M, Scaling::Rows128>
                                                    : codeRows<M, Scaling::Rows32>;
    launchKernel(kernel, grid, threads, 0, queue, s);
  });
}

/// Lays out stored codes and their scales. Each row of `scales` begins with the scale of a matrix.
void layStored(const Grouped &c, const Tensor &scales, const Factor8 &to, Queue &queue) {
  StoredMatrices s = {static_cast<const uint8_t *>(c.b.data),
                      static_cast<const float *>(scales.data),
                      scales.cols(),
                      c.b.shape[1],
                      c.b.shape[2],
                      to};
  int64_t rows = c.transB ? s.rows : to.depth, cols = c.transB ? to.depth : s.cols;
  dim3 grid(static_cast<unsigned>(ceilDiv(cols, kSquare)),
            static_cast<unsigned>(ceilDiv(rows, kSquare)), static_cast<unsigned>(c.groups));
  launchKernel(c.transB ? layCodes<false> : layCodes<true>, grid, 256, 0, queue, s);
}

} // namespace

/// 1. Lists the groups' rows and maps places of the quantised operands to rows. 2. Quantises both
/// operands; weights that are stored in 8 bits are only laid out. 3. Multiplies, on tensor cores if
/// they support the case.
void runFloat8(const Call &call, bool isGradient) {
  Scratch scratch(call);
  Buffers8 buffers(call, isGradient, scratch);
  Grouped8 &g = buffers.g;
  const Grouped &c = g.call;
  Queue &queue = queueOf(call);
  bool onTiles = hasTiles(g);
  buffers.list.fill(call, c, onTiles ? tiles::kColsOf8Bits : 0);
  if (isGradient)
    launchKernel(listTransposed, 1, kListThreads, 0, queue, buffers.list, g.list, c.slots,
                 c.groups);
  Mapping mapping = {buffers.list, g.list,         c.slots,         c.groups,      c.rows / c.slots,
                     buffers.rows, buffers.groups, buffers.largest, buffers.places};
  auto blocks = static_cast<unsigned>(ceilDiv(std::max(buffers.places, 2 * c.groups), 256));
  launchKernel(isGradient ? mapPlaces<true> : mapPlaces<false>, blocks, 256, 0, queue, mapping);
  Places ofRows = {buffers.rows,  buffers.groups, isGradient ? kDepthBlock : 1, 0, 0,
                   buffers.places};
  bool isStored = c.b.dtype == DType::F8E4M3;
  int amax = isStored ? 4 : 3;
  Amaxes ofA(call, amax, call.attrs.slot, buffers.largest);
  Amaxes ofB(call, amax, call.attrs.b_slot, buffers.largest + c.groups);
  code(c.a, ofRows, ofA, g.a, isGradient, queue);
  if (isGradient) {
    code(c.b, ofRows, ofB, g.b, true, queue);
  } else if (isStored) {
    layStored(c, call.in[3], g.b, queue);
  } else {
    int64_t rows = c.b.shape[1], aligned = c.transB ? rows : alignedDepth(rows);
    Places ofMatrices = {nullptr, nullptr, 1, rows, aligned, c.groups * aligned};
    code(c.b, ofMatrices, ofB, g.b, !c.transB, queue);
  }
  if (onTiles)
    return launchTiles(g, queue);
  Numbers8 numbers = {g.a, g.b, c.m, c.groups};
  plain::launch(c, isGradient ? 1 : c.slots, g.list, numbers, queue);
}

size_t workspaceOfFloat8(const Call &call, bool isGradient) {
  return isGradient ? workspaceOf<BuffersOf<true>>(call) : workspaceOf<BuffersOf<false>>(call);
}

} // namespace shardc::kernels::cuda
