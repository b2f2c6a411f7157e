// Products of matrices with their own transposes on Hopper's tensor cores, for Muon. Symmetric.h
// has the interface. Operands and results are bf16; sums are fp32 in the order of k, rounded once.
//
// Mapping: as many clusters of two blocks as fit on the GPU process work items. An item is a square
// of 256 by 256 elements on or below the diagonal; each block computes 128 of its rows as a tile.
// Both blocks need all 256 columns, and each loads half of them for both. In a block, one warpgroup
// copies and two multiply, as in grouped_tiles.cu. A tile below the diagonal is also written
// transposed, to its place above the diagonal. Rows and columns beyond a matrix's end are copied as
// zeros and not written. The host assigns items to clusters, the longest first, each to the cluster
// that has least to do. The result does not depend on it.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/cuda/Symmetric.h"
#include "kernels/cuda/grouped_tiles.cuh"

namespace shardc::kernels::cuda::tiles {
namespace {

using Sizes = TileSizes<256, 64, 4>;
static_assert(kSharedBytes<Sizes> <= 232448, "a block of Hopper has 227 KiB");

constexpr int kSquare = 2 * kTileRows; ///< rows and columns of a work item
constexpr int kGroupsOfLaunch = 8, kItemsOfLaunch = 2560;

/// The matrices of a group.
struct Squares16 {
  __nv_bfloat16 *c;
  const __nv_bfloat16 *added;
  int32_t side, stages;
  int32_t itemsOfMatrix, firstItem;
  int32_t isAcross;
};

struct SymmetricParams {
  CUtensorMap maps[kGroupsOfLaunch];
  Squares16 groups[kGroupsOfLaunch];
  int32_t groupCount;
  float alpha, beta;
  uint16_t firsts[kBlocksMax / 2 + 1]; ///< of each cluster in `items`; then the total
  uint16_t items[kItemsOfLaunch];
};
static_assert(sizeof(SymmetricParams) <= 32764, "the parameters of a kernel");

// ---- threads that copy ----

/// The position of a work item.
struct Item {
  int group, matrix;
  int row, col; ///< first row and column
};

__device__ __forceinline__ Item itemOf(const SymmetricParams &p, int index) {
  Item item = {};
  while (item.group + 1 < p.groupCount && p.groups[item.group + 1].firstItem <= index)
    ++item.group;
  const Squares16 &of = p.groups[item.group];
  int local = index - of.firstItem;
  item.matrix = local / of.itemsOfMatrix, local %= of.itemsOfMatrix;
  int row = static_cast<int>((sqrtf(8.0f * static_cast<float>(local) + 1.0f) - 1.0f) * 0.5f);
  while (row * (row + 1) / 2 > local)
    --row;
  while ((row + 1) * (row + 2) / 2 <= local)
    ++row;
  item.row = row * kSquare, item.col = (local - row * (row + 1) / 2) * kSquare;
  return item;
}

template <bool kIsB> class SymmetricCopies : RingWriter<Sizes> {
public:
  __device__ SymmetricCopies(const SymmetricParams &p, const Ring<Sizes> &ring)
      : RingWriter(ring), p_(p) {}

  /// Copies all tiles of the cluster's work items.
  __device__ void run() {
    int cluster = static_cast<int>(blockIdx.x) / 2, tile = 0;
    for (int i = p_.firsts[cluster]; i < p_.firsts[cluster + 1]; ++i, ++tile) {
      const Item item = itemOf(p_, p_.items[i]);
      if constexpr (!kIsB)
        announce(tile, item);
      copy(item);
    }
    if constexpr (!kIsB)
      announceEnd(tile);
  }

private:
  __device__ void announce(int tile, const Item &item) {
    awaitTile(tile);
    const Squares16 &of = p_.groups[item.group];
    Tile &to = ring_.tile(tile);
    to.row = item.row + rank_ * kTileRows, to.col = item.col;
    to.rows = of.side - to.row, to.cols = of.side - to.col;
    to.first = int64_t{item.matrix} * of.side * of.side;
    to.group = item.group, to.stages = of.stages;
  }

  /// Copies the block's rows, or its half of the columns that both blocks need.
  __device__ void copy(const Item &item) {
    const Squares16 &of = p_.groups[item.group];
    const CUtensorMap &map = p_.maps[item.group];
    int first = (kIsB ? item.col : item.row) + rank_ * kTileRows;
    for (int i = 0; i < of.stages; ++i, ++inRing_.count) {
      int stage = inRing_.stage(), depth = i * Sizes::kDepth;
      awaitStage();
      if constexpr (!kIsB)
        hopper::expectBytes(ring_.full(stage), Sizes::kStageBytes);
      uint32_t to =
          kIsB ? ring_.b(stage) + static_cast<uint32_t>(rank_) * kBytesOfA : ring_.a(stage);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int at = first + half * kGroupRows;
        hopper::Corner corner = {depth, at, item.matrix};
        if (of.isAcross)
          corner = {at, depth, item.matrix};
        load(map, to + static_cast<uint32_t>(half) * kBlockBytes, stage, corner, kIsB);
      }
    }
  }

  const SymmetricParams &p_;
};

// ---- warpgroups that multiply ----

template <bool kIsAcross>
__device__ __forceinline__ void
multiplySquare(const Ring<Sizes> &ring, int warpgroup, const Tile &tile,
               RingPosition<Sizes::kStages> &inRing, float (&sum)[128]) {
  hopper::Factor a = factorA(ring, warpgroup), b = factorB(ring);
  addStages(ring, tile, inRing, [&](int stage, bool isFirst) {
    addStage<Sizes, kIsAcross, kIsAcross, /*kIsF16=*/false, Sizes::kTileCols,
             Sizes::kDepth / kPartRows>(a, b, stage, isFirst, sum);
  });
}

/// sum = alpha·sum + beta·added.
__device__ __forceinline__ void mix(const SymmetricParams &p, const Tile &tile, float (&sum)[128]) {
  const Squares16 &of = p.groups[tile.group];
  int warp = static_cast<int>(threadIdx.x) / kWarp - 4,
      lane = static_cast<int>(threadIdx.x) % kWarp;
  int row = warp * 16 + lane / 4, col = lane % 4 * 2;
  const __nv_bfloat16 *from =
      of.added + tile.first + int64_t{tile.row + row} * of.side + tile.col + col;
#pragma unroll
  for (int block = 0; block < Sizes::kTileCols / kBlockCols; ++block) {
    uint32_t words[8][2];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int across = block * kBlockCols + j * 8;
        words[j][i] = row + 8 * i < tile.rows && across + col < tile.cols
                          ? __ldg(reinterpret_cast<const unsigned *>(
                                from + int64_t{8 * i} * of.side + across))
                          : 0;
      }
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int at = 4 * (8 * block + j) + 2 * i;
        sum[at] = p.alpha * sum[at] + p.beta * __uint_as_float(words[j][i] << 16);
        sum[at + 1] = p.alpha * sum[at + 1] + p.beta * __uint_as_float(words[j][i] & 0xffff0000u);
      }
  }
}

/// Writes a warpgroup's 64 rows as columns, 64 of its columns at a time.
__device__ __forceinline__ void writeTransposed(const Squares16 &of, const Tile &tile,
                                                const Ring<Sizes> &ring, int warpgroup,
                                                const float (&sum)[128]) {
  int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % kWarp;
  uint8_t *memory = ring.shared.warps[warpgroup * 4]; // that of the group's four warps
  uint32_t address = hopper::sharedAddress(memory);
  int rowOfMatrix = lane % 8 + lane / 16 * 8, part = thread / kWarp * 2 + lane / 8 % 2;
  int row = thread / 8, col = warpgroup * kGroupRows + thread % 8 * kChunk;
  __nv_bfloat16 *to = of.c + tile.first + int64_t{tile.col + row} * of.side + tile.row + col;
#pragma unroll
  for (int block = 0; block < Sizes::kTileCols / kBlockCols; ++block) {
    if (block * kBlockCols >= tile.cols)
      break;
    syncGroup(warpgroup);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int at = 4 * (8 * block + j) + 2 * i;
        words[i] = packed<false>(sum[at], sum[at + 1]);
      }
      hopper::storeMatrices<true>(
          address + static_cast<uint32_t>(placeOf(rowOfMatrix + 8 * j, part)), words);
    }
    syncGroup(warpgroup);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int across = block * kBlockCols + 16 * i;
      if (row + across < tile.cols && col < tile.rows)
        *reinterpret_cast<uint4 *>(to + int64_t{across} * of.side) =
            *reinterpret_cast<const uint4 *>(memory + placeOf(row + 16 * i, thread % 8));
    }
  }
}

__device__ __forceinline__ void writeSquare(const SymmetricParams &p, const Ring<Sizes> &ring,
                                            const Tile &tile, int warpgroup, float (&sum)[128]) {
  const Squares16 &of = p.groups[tile.group];
  int warp = static_cast<int>(threadIdx.x) / kWarp - 4; // index among the multiplying warps
  int row = warp * 16;
  const Data c = {of.c, Format::Bf16};
  TileTarget to = {
      c,       ring.shared.warps[warp], tile.first + int64_t{tile.row + row} * of.side + tile.col,
      of.side, tile.rows - row,         tile.cols};
  Nothing extra;
  writeNarrow<false>(to, sum, Biases(), extra);
  if (tile.row / kSquare * kSquare > tile.col)
    writeTransposed(of, tile, ring, warpgroup, sum);
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads)
    symmetricTiles(const __grid_constant__ SymmetricParams p) {
  runRing<Sizes>([](const Ring<Sizes> &) {},
                 [&](const Ring<Sizes> &ring, auto isB) {
                   SymmetricCopies<decltype(isB)::value>(p, ring).run();
                 },
                 [&](const Ring<Sizes> &ring) {
                   int warpgroup = groupOfWarp();
                   RingPosition<Sizes::kStages> inRing;
                   for (int count = 0;; ++count) {
                     const Tile tile = nextTile(ring, inRing, count, warpgroup);
                     if (tile.stages == 0)
                       break;
                     float sum[128];
                     if (p.groups[tile.group].isAcross) {
                       multiplySquare<true>(ring, warpgroup, tile, inRing, sum);
                     } else {
                       multiplySquare<false>(ring, warpgroup, tile, inRing, sum);
                       if (p.beta != 0.0f)
                         mix(p, tile, sum);
                     }
                     writeSquare(p, ring, tile, warpgroup, sum);
                   }
                 });
}

// ---- on the host ----

int64_t itemsOf(const SymmetricGroup &group) {
  const int64_t squares = ceilDiv(group.side, kSquare);
  return squares * (squares + 1) / 2;
}

int32_t stagesOf(const SymmetricGroup &group) {
  return static_cast<int32_t>(ceilDiv(group.depth, Sizes::kDepth));
}

/// Gives each item to the cluster that has least to do.
class Assignment {
public:
  explicit Assignment(int clusters) : clusters_(clusters) {}

  /// Returns the cluster of an item. `stages` may not rise from one item to the next.
  int take(int stages) {
    auto least = std::min_element(work_.begin(), work_.begin() + clusters_);
    *least += stages + kStagesOfResults;
    return static_cast<int>(least - work_.begin());
  }
  /// The stages of the cluster that has most to do.
  int longest() const { return *std::max_element(work_.begin(), work_.end()); }

private:
  static constexpr int kStagesOfResults = 15; ///< in whose time a cluster writes an item's results

  std::array<int, kBlocksMax / 2> work_ = {};
  int clusters_;
};

/// Assigns the items of a launch to clusters, those with most stages first.
void assignItems(SymmetricParams &p, int clusters, int total) {
  std::array<int, kGroupsOfLaunch> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.begin() + p.groupCount,
                   [&](int a, int b) { return p.groups[a].stages > p.groups[b].stages; });
  std::array<std::vector<uint16_t>, kBlocksMax / 2> itemsOfCluster;
  Assignment assignment(clusters);
  for (int i = 0; i < p.groupCount; ++i) {
    const int group = order[static_cast<size_t>(i)];
    const int end = group + 1 < p.groupCount ? p.groups[group + 1].firstItem : total;
    for (int item = p.groups[group].firstItem; item < end; ++item) {
      const int cluster = assignment.take(p.groups[group].stages);
      itemsOfCluster[static_cast<size_t>(cluster)].push_back(static_cast<uint16_t>(item));
    }
  }
  uint16_t *at = p.items;
  for (int cluster = 0; cluster < clusters; ++cluster) {
    p.firsts[cluster] = static_cast<uint16_t>(at - p.items);
    at = std::ranges::copy(itemsOfCluster[static_cast<size_t>(cluster)], at).out;
  }
  p.firsts[clusters] = static_cast<uint16_t>(total);
}

/// Adds matrices to a launch. Returns whether the driver encoded their map.
bool addGroup(SymmetricParams &p, const SymmetricGroup &group, int items) {
  TiledTensor x = {
      group.x, DType::BF16, {group.depth, group.side, group.matrices}, {kBlockCols, kGroupRows}};
  if (group.isAcross)
    std::swap(x.extents[0], x.extents[1]);
  p.groups[p.groupCount] = {static_cast<__nv_bfloat16 *>(group.c),
                            static_cast<const __nv_bfloat16 *>(group.x),
                            static_cast<int32_t>(group.side),
                            stagesOf(group),
                            static_cast<int32_t>(itemsOf(group)),
                            items,
                            group.isAcross ? 1 : 0};
  return encodeTensorMap(x, p.maps[p.groupCount++]);
}

} // namespace
} // namespace shardc::kernels::cuda::tiles

namespace shardc::kernels::cuda {

int symmetricTilesCode() { return ptxVersionOf(tiles::symmetricTiles); }

bool hasSymmetricTiles(const SymmetricGroup &group, const Queue &queue) {
  bool fits = symmetricPathOf(group.side, group.depth, queue) == KernelPath::SymmetricWgmma;
  for (const void *data : {group.x, static_cast<const void *>(group.c)})
    fits &= reinterpret_cast<uintptr_t>(data) % 16 == 0;
  return fits;
}

bool areTilesFaster(std::span<const SymmetricGroup> groups, int32_t multiprocessors) {
  // In the time of a stage of this kernel, measured on an H200 for sides from 512 to 8192: a stage
  // of the library's products, whose writes overlap products, and a launch.
  constexpr double kStageOfLibrary = 0.91, kLaunch = 7;
  const int clusters = tiles::clustersFor(multiprocessors);
  std::vector<SymmetricGroup> sorted(groups.begin(), groups.end());
  std::ranges::stable_sort(sorted, std::greater(), &SymmetricGroup::depth);
  tiles::Assignment assignment(clusters);
  double whole = 0;
  for (const SymmetricGroup &group : sorted) {
    const int64_t squares = ceilDiv(group.side, tiles::kSquare);
    const int64_t rounds = ceilDiv(group.matrices * squares * squares, clusters);
    whole += kLaunch + kStageOfLibrary * static_cast<double>(rounds * tiles::stagesOf(group));
    for (int64_t i = 0; i < group.matrices * tiles::itemsOf(group); ++i)
      assignment.take(tiles::stagesOf(group));
  }
  return assignment.longest() + kLaunch < whole;
}

void launchSymmetric(std::span<const SymmetricGroup> groups, float alpha, float beta,
                     int32_t multiprocessors, Queue &queue) {
  const int clusters = tiles::clustersFor(multiprocessors);
  tiles::SymmetricParams p = {};
  p.alpha = alpha, p.beta = beta;
  int items = 0;
  auto launch = [&] {
    if (items == 0)
      return;
    tiles::assignItems(p, clusters, items);
    tiles::launchPairs(tiles::symmetricTiles, clusters, tiles::kSharedBytes<tiles::Sizes>, queue,
                       p);
    p.groupCount = items = 0;
  };
  for (SymmetricGroup group : groups)
    while (group.matrices > 0) {
      const int64_t ofMatrix = tiles::itemsOf(group);
      if (p.groupCount == tiles::kGroupsOfLaunch || items + ofMatrix > tiles::kItemsOfLaunch)
        launch();
      SymmetricGroup part = group;
      part.matrices = std::min(group.matrices, (tiles::kItemsOfLaunch - items) / ofMatrix);
      if (!tiles::addGroup(p, part, items))
        return reportError(queue, "cuTensorMapEncodeTiled", cudaErrorInvalidValue);
      items += static_cast<int>(part.matrices * ofMatrix);
      group.matrices -= part.matrices;
      group.x = static_cast<const uint16_t *>(group.x) + part.matrices * group.side * group.depth;
      group.c = static_cast<uint16_t *>(group.c) + part.matrices * group.side * group.side;
    }
  launch();
}

} // namespace shardc::kernels::cuda
