// Shared by the grouped matrix products on Hopper's tensor cores: how the copying warpgroup finds
// tiles and copies them to the ring (tile_ring.cuh), and how results are written. Grouped.h has the
// interface.
#pragma once

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/TensorMap.h"
#include "kernels/cuda/tile_ring.cuh"

namespace shardc::kernels::cuda::tiles {

/// The op, and how its operands lie in memory.
enum class Form : uint8_t {
  AlongK,             ///< a product with b[E,m,k]
  AcrossK,            ///< a product with b[E,k,m]
  Gradient,           ///< a gradient: the rows of both operands are across k
  TransposedGradient, ///< a gradient of transposed operands, whose rows are along k
};
/// Whether the product sums over the rows of a group.
template <Form kForm>
inline constexpr bool kSumsRows = kForm == Form::Gradient || kForm == Form::TransposedGradient;

constexpr int kBandPairs = 8; ///< pairs of tiles (one below the other) before the next columns

/// Maps of the operands from which stages are copied.
struct Maps {
  CUtensorMap a, b;
  CUtensorMap partOfA, partOfB; ///< for a gradient: maps that copy 16 rows of a stage
};

/// Divides columns into tiles as evenly as multiples of `unit` allow. Narrow tiles are avoided:
/// they take as long as wide ones, because loading their rows takes the time.
struct ColumnCut {
  int tiles, unit;
  int units, wider; ///< least units of a tile, and number of tiles with one unit more

  /// Makes the division in which no tile has more than `most` columns.
  static ColumnCut of(int columns, int most, int unit) {
    int tiles = static_cast<int>(ceilDiv(columns, most));
    int all = static_cast<int>(ceilDiv(columns, unit));
    return {tiles, unit, all / tiles, all % tiles};
  }
  __host__ __device__ int widest() const { return (units + (wider > 0 ? 1 : 0)) * unit; }
  /// First column of tile i. For i = tiles, the number of columns.
  __device__ int first(int i) const { return (i * units + min(i, wider)) * unit; }
};

/// The biases of a product's groups, and the weights of its rows. Biases without data: none are
/// added.
struct Biases {
  Data biases, weights; ///< by group, and by row
  bool areWeighted = false;
};

/// Arguments of a kernel.
struct Params {
  GroupList list;
  Data c;
  int slots, groups, k, m;
  ColumnCut columns;
  int items;                 ///< work items of each group of a gradient
  double *squares = nullptr; ///< one partial sum per multiplying warp of each block
  Biases biases;
};

// ---- the thread that copies ----

/// The position of a block's tile.
struct Place {
  int group;    ///< index in the list; for a gradient, the group in each slot
  int row, col; ///< first row and column in c; rows of a product count over all groups
  int rows;     ///< valid rows from `row` on; may exceed the tile
  int cols;     ///< valid columns of the tile; none if 0 or less
  bool sharesA; ///< both blocks read the same rows of a; else the same columns of b
};

/// Copies all tiles of one operand, in one thread. The thread of operand a also announces each tile
/// to the multiplying warpgroups, and the end of the tiles.
template <typename Sizes, Form kForm, bool kIsB> class Copies : RingWriter<Sizes> {
  static constexpr int kDepth = Sizes::kDepth, kStageParts = kDepth / kPartRows;
  static constexpr bool kIsBAlongK = kForm == Form::AlongK || kForm == Form::TransposedGradient;
  using Base = RingWriter<Sizes>;
  using Base::awaitStage, Base::awaitTile, Base::load, Base::rank_, Base::ring_, Base::inRing_;

public:
  __device__ Copies(const Maps &maps, const Params &p, const Ring<Sizes> &ring)
      : Base(ring), maps_(maps), p_(p) {}

  /// Copies all tiles of the cluster's work items.
  __device__ void run() {
    const Shared<Sizes> &shared = ring_.shared;
    int items = kSumsRows<kForm> ? p_.items * p_.groups : shared.firstItems[p_.slots * p_.groups];
    int tile = 0;
    for (int item = static_cast<int>(blockIdx.x) / 2; item < items;
         item += static_cast<int>(gridDim.x) / 2, ++tile) {
      Place place = placeOf(item);
      if constexpr (!kIsB)
        announce(tile, place);
      copy(place);
    }
    if constexpr (!kIsB)
      Base::announceEnd(tile);
  }

private:
  __device__ Place placeOf(int item) {
    const Shared<Sizes> &shared = ring_.shared;
    Place place;
    int local, rows, begin = 0, tileCol;
    if constexpr (kSumsRows<kForm>) {
      place.group = ring_.shared.order[item / p_.items];
      local = item % p_.items, rows = p_.k;
    } else {
      while (shared.firstItems[group_ + 1] <= item)
        ++group_;
      place.group = group_;
      local = item - shared.firstItems[group_], begin = shared.begins[group_];
      rows = shared.ends[group_] - begin;
    }
    int tileCols = p_.columns.tiles, pairs = (rows + kTileRows - 1) / kTileRows / 2;
    place.sharesA = local >= pairs * tileCols;
    if (place.sharesA) {
      place.row = 2 * pairs * kTileRows;
      tileCol = 2 * (local - pairs * tileCols) + rank_;
    } else {
      int band = local / (kBandPairs * tileCols), inBand = local % (kBandPairs * tileCols);
      int width = min(kBandPairs, pairs - band * kBandPairs);
      place.row = (2 * (band * kBandPairs + inBand % width) + rank_) * kTileRows;
      tileCol = inBand / width;
    }
    place.rows = rows - place.row, place.row += begin;
    place.col = p_.columns.first(tileCol);
    place.cols = min(p_.m, p_.columns.first(tileCol + 1)) - place.col;
    return place;
  }

  __device__ int stagesOf(int rows) const { return (rows + kDepth - 1) / kDepth; }

  __device__ void announce(int tile, const Place &place) {
    awaitTile(tile);
    const Shared<Sizes> &shared = ring_.shared;
    Tile &to = ring_.tile(tile);
    int rows = 0;
    to.rows = place.rows, to.cols = place.cols;
    to.group = place.group, to.row = place.row, to.col = place.col;
    if constexpr (kSumsRows<kForm>) {
      to.first = (int64_t{place.group} * p_.k + place.row) * p_.m + place.col;
      for (int group = place.group; group < p_.slots * p_.groups; group += p_.groups)
        rows += stagesOf(shared.ends[group] - shared.begins[group]);
      to.stages = max(rows, 1);
    } else {
      to.first = int64_t{place.row} * p_.m + place.col;
      to.stages = stagesOf(p_.k);
    }
  }

  __device__ void copy(const Place &place) {
    const Shared<Sizes> &shared = ring_.shared;
    if constexpr (kSumsRows<kForm>) {
      bool isEmpty = true;
      for (int group = place.group; group < p_.slots * p_.groups; group += p_.groups)
        for (int depth = shared.begins[group]; depth < shared.ends[group]; depth += kDepth) {
          copyStage(place, depth, shared.ends[group] - depth, 0);
          isEmpty = false;
        }
      if (isEmpty) // one stage, which is zeroed, for a group without rows
        copyStage(place, 0, 0, 0);
    } else {
      for (int depth = 0; depth < p_.k; depth += kDepth)
        copyStage(place, depth, kDepth, place.group % p_.groups);
    }
  }

  /// Copies a stage with `rows` valid rows along k. Only stages of a gradient can have fewer rows
  /// than a full stage.
  __device__ void copyStage(const Place &place, int depth, int rows, int matrix) {
    int stage = inRing_.stage(), parts = kStageParts;
    if constexpr (kForm == Form::Gradient)
      parts = min(max((rows + kPartRows - 1) / kPartRows, 1), kStageParts);
    awaitStage();
    if constexpr (kIsB) {
      copyB(place, stage, depth, parts, matrix);
    } else {
      hopper::expectBytes(ring_.full(stage), bytesOf(place, parts));
      for (int half = 0; half < halvesOf(place); ++half)
        if (!place.sharesA || half == rank_)
          copyA(place, stage, half, depth, parts);
    }
    ++inRing_.count;
  }

  /// The number of halves of a tile's rows of a, and of blocks of its columns of b, that have valid
  /// data.
  __device__ static int halvesOf(const Place &place) { return place.rows > kGroupRows ? 2 : 1; }
  __device__ static int blocksOf(const Place &place) {
    return (max(place.cols, 0) + kBlockCols - 1) / kBlockCols;
  }
  __device__ uint32_t bytesOf(const Place &place, int parts) const {
    uint32_t ofBlock =
        kForm == Form::Gradient ? static_cast<uint32_t>(parts) * kPartBytes : kBlockBytes;
    uint32_t ofB = static_cast<uint32_t>(blocksOf(place)) * ofBlock;
    if constexpr (kIsBAlongK)
      ofB = place.cols > 0 ? static_cast<uint32_t>(p_.columns.widest()) * kRowBytes : 0;
    return static_cast<uint32_t>(halvesOf(place)) * ofBlock + ofB;
  }

  /// Copies 64 columns of an operand whose rows are across k: all rows of a stage, or 16 at a time.
  __device__ void loadBlock(const CUtensorMap &whole, const CUtensorMap &part, uint32_t to,
                            int stage, hopper::Corner at, int parts, bool forBoth) const {
    if (parts == kStageParts)
      return load(whole, to, stage, at, forBoth);
    for (int i = 0; i < parts; ++i, to += kPartBytes, at.y += kPartRows)
      load(part, to, stage, at, forBoth);
  }

  __device__ void copyA(const Place &place, int stage, int half, int depth, int parts) const {
    int row = place.row + half * kGroupRows;
    uint32_t to = ring_.a(stage) + static_cast<uint32_t>(half) * kBlockBytes;
    if constexpr (kForm == Form::Gradient)
      loadBlock(maps_.a, maps_.partOfA, to, stage, {row, depth, 0}, parts, place.sharesA);
    else
      load(maps_.a, to, stage, {depth, row, 0}, place.sharesA);
  }
  /// Copies the block's own columns of b, or its half of the columns that both blocks need.
  __device__ void copyB(const Place &place, int stage, int depth, int parts, int matrix) const {
    bool forBoth = !place.sharesA;
    int pieces = kIsBAlongK ? (place.cols > 0 ? 2 : 0) : blocksOf(place);
    for (int i = 0; i < pieces; ++i) {
      int piece = kIsBAlongK ? p_.columns.widest() / 2 : kBlockCols, col = i * piece;
      if (forBoth && (kIsBAlongK ? i : i / 2) != rank_)
        continue;
      uint32_t to = ring_.b(stage) + static_cast<uint32_t>(col) * kRowBytes;
      if constexpr (kIsBAlongK)
        load(maps_.b, to, stage, {depth, place.col + col, matrix}, forBoth);
      else
        loadBlock(maps_.b, maps_.partOfB, to, stage, {place.col + col, depth, matrix}, parts,
                  forBoth);
    }
  }

  const Maps &maps_;
  const Params &p_;
  int group_ = 0;
};

// ---- results ----

/// Swizzled position of the 16 bytes `part` of a 128-byte row.
__device__ __forceinline__ int placeOf(int row, int part) {
  return row * 128 + (part ^ (row & 7)) * 16;
}

/// The destination of a warp's 16 rows of results.
struct TileTarget {
  const Data &c;
  uint8_t *memory; ///< shared memory of the warp: 16 rows of 128 bytes
  int64_t first;   ///< index in c of the first element
  int m;           ///< elements from one row to the next
  int rows, cols;  ///< rows and columns to write; none if 0 or less

  __device__ bool has(int row, int col) const { return row < rows && col < cols; }
  __device__ int64_t at(int row, int col) const { return first + int64_t{row} * m + col; }
};

/// Sums the squares of a thread's elements: in fp32 within a tile, in fp64 over tiles.
struct Squares {
  static constexpr int kSums = 4; ///< independent sums, so that additions can overlap
  double total = 0.0;
  float ofTile[kSums] = {};

  __device__ __forceinline__ void add(float v, int i) {
    ofTile[i % kSums] = fmaf(v, v, ofTile[i % kSums]);
  }
  __device__ __forceinline__ void add(const float (&v)[kChunk]) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      add(v[j], j);
  }
  __device__ __forceinline__ float sumOfTile() const {
    return (ofTile[0] + ofTile[1]) + (ofTile[2] + ofTile[3]);
  }
  /// Whether the tile's sum of squares is well inside the range of fp32: no square overflowed, and
  /// none that matters underflowed.
  __device__ __forceinline__ bool isExact() const {
    constexpr float kLeast = 1e-30f, kMost = 1e36f;
    float sum = sumOfTile();
    return sum > kLeast && sum < kMost;
  }
  __device__ __forceinline__ void addExactly(const float (&v)[kChunk]) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      total = fma(static_cast<double>(v[j]), static_cast<double>(v[j]), total);
  }
  __device__ __forceinline__ void endTile() {
    total += static_cast<double>(sumOfTile());
#pragma unroll
    for (float &sum : ofTile)
      sum = 0.0f;
  }
};
/// Adds the bias of a tile's group to a thread's results, with the same rounding as
/// grouped_bias.cu.
struct AddedBias {
  int64_t first = 0; ///< column of the tile
  float weights[4];  ///< weights of the thread's rows
  float chunk[kChunk];

  /// Reads the weights of a warp's rows, from `row` on.
  __device__ __forceinline__ void beginTile(const Biases &of, int64_t first_, int64_t row,
                                            int rows) {
    first = first_;
    int mine = static_cast<int>(threadIdx.x) % kWarp / 8;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      weights[i] =
          of.areWeighted && 4 * i + mine < rows ? element(of.weights, row + 4 * i + mine) : 1.0f;
  }
  template <Mode kMode> __device__ __forceinline__ void read(const Biases &of, int col) {
    unpack<kMode>(of.biases, __ldg(chunkOf(of.biases, first + col)), chunk);
  }
  template <Mode kMode>
  __device__ __forceinline__ uint4 added(const Data &c, uint4 words, int i) const {
    float v[kChunk];
    unpack<kMode>(c, words, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] += chunk[j] * weights[i];
    return pack<kMode>(c, v);
  }
  __device__ __forceinline__ void endTile() {}
};
struct Nothing {
  __device__ __forceinline__ void endTile() {}
};

/// Stores v, or adds v to the stored value, and squares the result.
template <Mode kMode, typename Extra>
__device__ __forceinline__ void store(const Data &c, int64_t i, float (&v)[kChunk], Extra &extra) {
  if constexpr (!std::is_same_v<Extra, Squares>) {
    store8<kMode>(c, i, kChunk, v);
  } else {
    if (c.accumulate) {
      float old[kChunk];
      load8<kMode>(c, i, kChunk, old);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] = old[j] + v[j];
    }
    store8<kMode>(Data{c.p, c.format, false}, i, kChunk, v);
    round8<kMode>(c, v);
    Squares chunk;
    chunk.add(v);
    if (chunk.isExact())
      extra.ofTile[0] += chunk.sumOfTile();
    else
      extra.addExactly(v);
  }
}

/// Squares this thread's elements of a tile again, in fp64, because their sum was outside the range
/// of fp32.
template <Mode kMode, int kSums>
__device__ __forceinline__ void squareAgain(const TileTarget &to, Squares &squares) {
  squares = {squares.total};
  int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int i = 0; i < kSums / 8; ++i) {
    int row = 4 * (i % 4) + lane / 8, col = i / 4 * kBlockCols + lane % 8 * kChunk;
    if (!to.has(row, col))
      continue;
    float v[kChunk];
    unpack<kMode>(to.c, __ldcg(chunkOf(to.c, to.at(row, col))), v);
    squares.addExactly(v);
  }
}

/// Rounds results to 16 bits and writes them, 64 columns at a time, in rows of 128 bytes.
template <bool kIsF16, int kSums, typename Extra>
__device__ __forceinline__ void writeNarrow(const TileTarget &to, const float (&sum)[kSums],
                                            const Biases &biases, Extra &extra) {
  constexpr bool kSquares = std::is_same_v<Extra, Squares>;
  constexpr bool kIsBiased = std::is_same_v<Extra, AddedBias>;
  constexpr Mode kMode = kIsF16 ? Mode::F16 : Mode::Bf16;
  int lane = static_cast<int>(threadIdx.x) % kWarp, rowOfMatrix = lane % 8 + lane / 8 % 2 * 8;
  uint32_t memory = hopper::sharedAddress(to.memory);
  // A lane writes 16 bytes of each of four rows per block. Their addresses are computed once.
  int firstRow = lane / 8, firstCol = lane % 8 * kChunk;
  uint4 *targets[4];
  bool isThere[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    targets[i] = chunkOf(to.c, to.at(firstRow, firstCol)) + int64_t{i} * (to.m / kChunk * 4);
    isThere[i] = firstRow + 4 * i < to.rows;
  }
#pragma unroll
  for (int block = 0; block < kSums / (kBlockCols / 2); ++block) {
    if (block * kBlockCols >= to.cols)
      break;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int at = 4 * (8 * block + j) + 2 * i;
        words[i] = packed<kIsF16>(sum[at], sum[at + 1]);
        if constexpr (kSquares) // squares the fp32 value: converting the rounded one costs time
          extra.add(sum[at], 2 * i), extra.add(sum[at + 1], 2 * i + 1);
      }
      hopper::storeMatrices(memory + static_cast<uint32_t>(placeOf(rowOfMatrix, j + lane / 16)),
                            words);
    }
    int col = block * kBlockCols + firstCol;
    bool hasCol = col < to.cols;
    if constexpr (kIsBiased)
      if (hasCol)
        extra.template read<kMode>(biases, col);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!isThere[i] || !hasCol)
        continue;
      uint4 words =
          *reinterpret_cast<const uint4 *>(to.memory + placeOf(firstRow + 4 * i, lane % 8));
      if constexpr (kIsBiased)
        words = extra.template added<kMode>(to.c, words, i);
      __stcs(targets[i] + block * (kBlockCols / kChunk), words);
    }
  }
  if constexpr (kSquares)
    if (!extra.isExact())
      squareAgain<kMode, kSums>(to, extra);
}

/// Writes results in fp32, 32 columns at a time, or adds them to the stored ones. Accumulating
/// 16-bit results use this function too, so that the sum is rounded once.
template <bool kIsF16, bool kIsWide, int kSums, typename Extra>
__device__ __forceinline__ void writeWide(const TileTarget &to, const float (&sum)[kSums],
                                          Extra &extra) {
  constexpr int kCols = kBlockCols / 2;
  constexpr Mode kMode = kIsWide ? Mode::Mixed : kIsF16 ? Mode::F16 : Mode::Bf16;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int block = 0; block < kSums / (kCols / 2); ++block) {
    if (block * kCols >= to.cols)
      break;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int place = placeOf(lane / 4 + 8 * i, 2 * j + lane % 4 / 2) + lane % 2 * 8;
        int at = 4 * (4 * block + j) + 2 * i;
        *reinterpret_cast<float2 *>(to.memory + place) = {sum[at], sum[at + 1]};
      }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int row = 8 * i + lane / 4, part = lane % 4 * 2, col = block * kCols + lane % 4 * kChunk;
      if (!to.has(row, col))
        continue;
      float4 a = *reinterpret_cast<const float4 *>(to.memory + placeOf(row, part));
      float4 b = *reinterpret_cast<const float4 *>(to.memory + placeOf(row, part + 1));
      float v[kChunk] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      store<kMode>(to.c, to.at(row, col), v, extra);
    }
  }
}

// ---- the kernel ----

/// Orders the groups of a gradient by falling numbers of rows. Clusters process work items in inRing,
/// and all items of a group take equally long. In this order, the work of two clusters differs by
/// at most one item of the longest group.
template <typename Sizes>
__device__ __forceinline__ void orderGroups(const Params &p, Shared<Sizes> &shared) {
  auto *rows = reinterpret_cast<int32_t *>(shared.warps); // free before the first tile
  static_assert(sizeof(shared.warps) >= kGroupsMax * sizeof(int32_t));
  for (int group = static_cast<int>(threadIdx.x); group < p.groups; group += kThreads) {
    rows[group] = 0;
    for (int i = group; i < p.slots * p.groups; i += p.groups)
      rows[group] += p.list.ends[i] - p.list.begins[i];
  }
  __syncthreads();
  for (int group = static_cast<int>(threadIdx.x); group < p.groups; group += kThreads) {
    int before = 0;
#pragma unroll 8
    for (int other = 0; other < p.groups; ++other)
      before += rows[other] > rows[group] || (rows[other] == rows[group] && other < group);
    shared.order[before] = group;
  }
}

/// Reads the list of groups to shared memory.
template <typename Sizes, Form kForm>
__device__ __forceinline__ void readGroups(const Params &p, Shared<Sizes> &shared) {
  int all = p.slots * p.groups;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
    shared.begins[i] = p.list.begins[i];
    shared.ends[i] = p.list.ends[i];
  }
  if constexpr (kSumsRows<kForm>)
    orderGroups(p, shared);
  else
    for (int i = static_cast<int>(threadIdx.x); i <= all; i += kThreads)
      shared.firstItems[i] = p.list.firstItems[i];
}

/// The kernel of a grouped product.
template <typename Sizes, Form kForm, typename Multiply>
__device__ __forceinline__ void runTiles(const Maps &maps, const Params &p,
                                         const Multiply &multiply) {
  runRing<Sizes>([&](const Ring<Sizes> &ring) { readGroups<Sizes, kForm>(p, ring.shared); },
                 [&](const Ring<Sizes> &ring, auto isB) {
                   Copies<Sizes, kForm, decltype(isB)::value>(maps, p, ring).run();
                 },
                 multiply);
}

// ---- on the host ----

/// Sets how columns are divided, and the number of work items of each group of a gradient.
inline void setItems(Params &p, const ColumnCut &columns) {
  p.columns = columns;
  int tileRows = (p.k + kTileRows - 1) / kTileRows, cols = columns.tiles;
  p.items = tileRows / 2 * cols + tileRows % 2 * ((cols + 1) / 2);
}

} // namespace shardc::kernels::cuda::tiles
