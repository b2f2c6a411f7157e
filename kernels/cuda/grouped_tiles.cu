// Grouped matrix products on Hopper's tensor cores. grouped_matmul.cu defines the ops. Operands are
// bf16 or f16; sums are fp32 in the order of k, rounded once.
//
// Mapping: as many clusters of two blocks as fit on the GPU process work items in turn. An item is
// two tiles of 128 by up to 256 elements that share one operand; each block loads half of it for
// both. Two tiles of a group, one below the other, share the columns of b. If a group has an odd
// number of rows of tiles, pairs of tiles in the last row lie side by side and share rows of a, so
// that no block idles. Columns are divided evenly, so that no tile is narrow. In a block, one
// thread finds the tiles and copies 64 elements along k at a time into a ring in shared memory, and
// two warpgroups multiply 64 rows each. The second warpgroup starts a little later, so that one
// multiplies while the other writes results. Eight pairs of tiles, one below the other, precede the
// next columns, so that a and b stay in the L2 cache.
//
// A group without rows multiplies and copies nothing. A tile multiplies and copies only its valid
// columns, in multiples of 64 or 16. A gradient is a product of transposed rows: its tiles have
// fixed places, and k is rows. The last stage of a group has only its valid rows, in multiples of
// 16. Groups with most rows come first, so that clusters finish together. Rows beyond a group's end
// are copied with its last tile. In a product they are not written; in a gradient, zeros replace
// them in shared memory before the product. On request, the multiplying warps square what they
// write of a gradient, and each leaves one fp64 sum for all of its tiles. These sums depend only on
// data and sizes, because clusters process items in a fixed order.
#include "kernels/cuda/grouped_tiles.cuh"

namespace shardc::kernels::cuda::tiles {
namespace {

using Sizes = TileSizes<256, 64, 4>;
constexpr int kDepth = Sizes::kDepth, kTileCols = Sizes::kTileCols;
static_assert(kTileCols == kColsOf16Bits);
static_assert(kSharedBytes<Sizes> <= 232448, "a block of Hopper has 227 KiB");

// ---- products ----

/// Zeroes rows [from, to) of this warpgroup's block of a, and of b. Both warpgroups zero b, so that
/// neither waits for the other.
__device__ __forceinline__ void clearRows(const Ring<Sizes> &ring, int stage, int warpgroup,
                                          int from, int to) {
  int thread = static_cast<int>(threadIdx.x) % 128;
  constexpr int kPiecesOfRow = 8; // a row in pieces of 16 bytes
  auto clear = [&](uint32_t block) {
#pragma unroll 1
    for (int i = from * kPiecesOfRow + thread; i < to * kPiecesOfRow; i += 128)
      hopper::clear16(block + static_cast<uint32_t>(i) * 16);
  };
  clear(ring.a(stage) + static_cast<uint32_t>(warpgroup) * kBlockBytes);
  for (uint32_t i = 0; i < kTileCols / kBlockCols; ++i)
    clear(ring.b(stage) + i * kBlockBytes);
  hopper::fenceForCopies();
  syncGroup(warpgroup);
}

/// Calls `add` for the parts of a gradient's stage with `rows` valid rows, at least one. Each
/// branch has a constant number of parts. With a loop, or a variable number, ptxas would wait for
/// each product before the next one.
template <typename Add> __device__ __forceinline__ void forParts(int rows, const Add &add) {
  static_assert(kDepth == 4 * kPartRows);
  if (rows > 3 * kPartRows)
    add.template operator()<4>();
  else if (rows > 2 * kPartRows)
    add.template operator()<3>();
  else if (rows > kPartRows)
    add.template operator()<2>();
  else
    add.template operator()<1>();
}

/// The numbers of rows of a gradient's stages, in the order in which Copies copies them.
class StageRows {
public:
  __device__ StageRows(const Params &p, const Shared<Sizes> &shared, int group)
      : p_(p), shared_(shared), group_(group) {}

  /// The group's rows from the next stage on. 0 for the single stage of a group without rows.
  __device__ int next() {
    for (; left_ <= 0 && group_ < p_.slots * p_.groups; group_ += p_.groups)
      left_ = shared_.ends[group_] - shared_.begins[group_];
    int rows = max(left_, 0);
    left_ -= kDepth;
    return rows;
  }

private:
  const Params &p_;
  const Shared<Sizes> &shared_;
  int group_, left_ = 0;
};

/// Multiplies the first kCols columns of a tile.
template <Form kForm, bool kIsF16, int kCols>
__device__ __forceinline__ void multiply(const Params &p, const Ring<Sizes> &ring, int warpgroup,
                                         const Tile &tile, RingPosition<Sizes::kStages> &inRing,
                                         float (&sum)[128]) {
  StageRows depths(p, ring.shared, tile.group);
  hopper::Factor a = factorA(ring, warpgroup), b = factorB(ring);
  addStages(ring, tile, inRing, [&](int stage, bool isFirst) {
    auto add = [&]<int kParts>() {
      addStage<Sizes, kForm == Form::Gradient, kForm != Form::AlongK, kIsF16, kCols, kParts>(
          a, b, stage, isFirst, sum);
    };
    if constexpr (kForm == Form::Gradient) {
      int rows = depths.next();
      if (rows < kDepth)
        clearRows(ring, stage, warpgroup, rows,
                  (max(rows, 1) + kPartRows - 1) / kPartRows * kPartRows);
      forParts(rows, add);
    } else {
      add.template operator()<kDepth / kPartRows>();
    }
  });
}

/// Multiplies with the narrowest instruction that covers the tile's columns.
template <Form kForm, bool kIsF16, int kCols, int... kWider>
__device__ __forceinline__ void
multiplyColumns(const Params &p, const Ring<Sizes> &ring, int warpgroup, const Tile &tile,
                RingPosition<Sizes::kStages> &inRing, float (&sum)[128]) {
  if constexpr (sizeof...(kWider) > 0)
    if (tile.cols > kCols)
      return multiplyColumns<kForm, kIsF16, kWider...>(p, ring, warpgroup, tile, inRing, sum);
  multiply<kForm, kIsF16, kCols>(p, ring, warpgroup, tile, inRing, sum);
}

// ---- results ----

template <Form kForm, bool kIsF16, bool kIsWide, typename Extra>
__device__ __forceinline__ void writeTile(const Params &p, const Ring<Sizes> &ring,
                                          const Tile &tile, int warpgroup, const float (&sum)[128],
                                          Extra &extra) {
  int warp = static_cast<int>(threadIdx.x) / kWarp - 4; // index among the multiplying warps
  int row = warp * 16;
  TileTarget to = {p.c, ring.shared.warps[warp], tile.first + int64_t{row} * p.m,
                   p.m, tile.rows - row,         tile.cols};
  if constexpr (std::is_same_v<Extra, AddedBias>)
    extra.beginTile(p.biases, int64_t{tile.group % p.groups} * p.m + tile.col,
                    int64_t{tile.row} + row, to.rows);
  if constexpr (kIsWide) {
    writeWide<kIsF16, true>(to, sum, extra);
  } else {
    if (kForm == Form::Gradient && p.c.accumulate)
      writeWide<kIsF16, false>(to, sum, extra);
    else
      writeNarrow<kIsF16>(to, sum, p.biases, extra);
  }
  extra.endTile();
}

template <Form kForm, bool kIsF16, bool kIsWide, typename Extra>
__device__ __forceinline__ void multiplyTiles(const Params &p, const Ring<Sizes> &ring,
                                              Extra &extra) {
  int warpgroup = groupOfWarp();
  RingPosition<Sizes::kStages> inRing;
  float sum[128];
  for (int count = 0;; ++count) {
    const Tile tile = nextTile(ring, inRing, count, warpgroup);
    if (tile.stages == 0)
      break;
    if (tile.rows <= warpgroup * kGroupRows || tile.cols <= 0) {
      skipTile(ring, tile, warpgroup, inRing);
      continue;
    }
    if constexpr (kForm == Form::AlongK)
      multiplyColumns<kForm, kIsF16, 64, 128, 192, 208, 224, 240, 256>(p, ring, warpgroup, tile,
                                                                       inRing, sum);
    else
      multiplyColumns<kForm, kIsF16, 64, 128, 192, 256>(p, ring, warpgroup, tile, inRing, sum);
    writeTile<kForm, kIsF16, kIsWide>(p, ring, tile, warpgroup, sum, extra);
  }
}

// ---- the kernel ----

template <Form kForm, bool kIsF16, bool kIsWide, typename Extra>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads)
    groupedTiles(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  runTiles<Sizes, kForm>(maps, p, [&](const Ring<Sizes> &ring) {
    Extra extra;
    multiplyTiles<kForm, kIsF16, kIsWide>(p, ring, extra);
    if constexpr (std::is_same_v<Extra, Squares>) {
      double total = warpSum(extra.total);
      int warp = static_cast<int>(threadIdx.x) / kWarp - 4;
      if (threadIdx.x % kWarp == 0)
        p.squares[static_cast<int>(blockIdx.x) * kWarpsThatMultiply + warp] = total;
    }
  });
}

/// Operands with k across the columns are loaded 64 columns at a time, others 16 at a time.
ColumnCut cutColumns(const Grouped &g, Form form) {
  return ColumnCut::of(static_cast<int>(g.m), kTileCols, form == Form::AlongK ? 16 : kBlockCols);
}

/// Describes both operands to the copying hardware. A gradient also needs maps of 16 rows, since a
/// group may end inside a stage. False if an operand's address or size does not fit.
bool makeMaps(const Grouped &g, Form form, int widest, Maps &maps) {
  TiledTensor a = {g.a.data, g.a.dtype, {g.k, g.a.rows(), 1}, {kBlockCols, kDepth}};
  TiledTensor b = {g.b.data, g.b.dtype, {g.m, g.b.rows(), 1}, {kBlockCols, kDepth}};
  if (form == Form::AlongK)
    b = {g.b.data, g.b.dtype, {g.k, g.m, g.groups}, {kDepth, static_cast<uint32_t>(widest) / 2}};
  else if (form == Form::AcrossK)
    b = {g.b.data, g.b.dtype, {g.m, g.k, g.groups}, {kBlockCols, kDepth}};
  TiledTensor partOfA = a, partOfB = b;
  partOfA.tile[1] = partOfB.tile[1] = kPartRows;
  if (form == Form::Gradient &&
      (!encodeTensorMap(partOfA, maps.partOfA) || !encodeTensorMap(partOfB, maps.partOfB)))
    return false;
  return encodeTensorMap(a, maps.a) && encodeTensorMap(b, maps.b);
}

template <Form kForm, bool kIsF16, bool kIsWide, typename Extra = Nothing>
int64_t launch(const Grouped &g, const GroupList &list, Queue &queue) {
  Maps maps;
  ColumnCut columns = cutColumns(g, kForm);
  if (!makeMaps(g, kForm, columns.widest(), maps)) {
    reportError(queue, "cuTensorMapEncodeTiled", cudaErrorInvalidValue);
    return 0;
  }
  Params p = {list,
              dataOf(g.c),
              static_cast<int>(g.slots),
              static_cast<int>(g.groups),
              static_cast<int>(g.k),
              static_cast<int>(g.m)};
  setItems(p, columns);
  p.squares = g.squares;
  if (g.bias != nullptr)
    p.biases = {dataOf(*g.bias), g.weights != nullptr ? dataOf(*g.weights) : Data{},
                g.weights != nullptr};
  const int clusters = clustersFor(g.multiprocessors);
  launchPairs(groupedTiles<kForm, kIsF16, kIsWide, Extra>, clusters, kSharedBytes<Sizes>, queue,
              maps, p);
  return kWarpsThatMultiply * 2 * clusters;
}

template <bool kIsF16, bool kIsWide>
int64_t launchGradient(const Grouped &g, const GroupList &list, Queue &queue) {
  return g.squares != nullptr ? launch<Form::Gradient, kIsF16, kIsWide, Squares>(g, list, queue)
                              : launch<Form::Gradient, kIsF16, kIsWide>(g, list, queue);
}

template <bool kIsF16, typename Extra>
int64_t launchProduct(const Grouped &g, const GroupList &list, Queue &queue) {
  return g.transB ? launch<Form::AlongK, kIsF16, false, Extra>(g, list, queue)
                  : launch<Form::AcrossK, kIsF16, false, Extra>(g, list, queue);
}

template <bool kIsF16> int64_t launchType(const Grouped &g, const GroupList &list, Queue &queue) {
  if (g.isGradient)
    return g.c.dtype == DType::F32 ? launchGradient<kIsF16, true>(g, list, queue)
                                   : launchGradient<kIsF16, false>(g, list, queue);
  return g.bias != nullptr ? launchProduct<kIsF16, AddedBias>(g, list, queue)
                           : launchProduct<kIsF16, Nothing>(g, list, queue);
}

} // namespace
} // namespace shardc::kernels::cuda::tiles

namespace shardc::kernels::cuda {

int groupedTilesCode() {
  return ptxVersionOf(tiles::groupedTiles<tiles::Form::AlongK, false, false, tiles::Nothing>);
}

bool hasTiles(const Grouped &g) {
  bool fits = g.path == KernelPath::GroupedWgmma;
  for (const Tensor *t : {&g.a, &g.b, &g.c, g.bias != nullptr ? g.bias : &g.c})
    fits &= reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
  return fits;
}

int64_t launchTiles(const Grouped &g, const GroupList &list, Queue &queue) {
  return g.a.dtype == DType::F16 ? tiles::launchType<true>(g, list, queue)
                                 : tiles::launchType<false>(g, list, queue);
}

} // namespace shardc::kernels::cuda
