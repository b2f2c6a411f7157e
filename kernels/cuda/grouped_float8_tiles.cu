// Grouped products of 8-bit operands, which have been quantised, on Hopper's tensor cores. The
// mapping is that of grouped_tiles.cu, with tiles of 128 by 128. The tensor cores keep fewer bits
// of 8-bit sums than fp32 has. Therefore each 128 elements along k are a product of their own,
// which is added to fp32 sums with the scales of its blocks, if any. A gradient is the product of
// transposed operands: k is the rows of a group, padded with zeros.
#include "kernels/cuda/grouped_tiles.cuh"

namespace shardc::kernels::cuda::tiles {
namespace {

using Sizes = TileSizes<128, kDepthBlock, 6>;
constexpr int kTileCols = Sizes::kTileCols, kSums = kTileCols / 2;
static_assert(kTileCols == kColsOf8Bits);
static_assert(kSharedBytes<Sizes> <= 232448, "a block of Hopper has 227 KiB");

struct Scales {
  const float *a, *b;
  int64_t rowsOfA;      ///< length of a row of scales by blocks
  int blocks, tilesOfB; ///< for scales of 128 by 128: blocks along k, and tiles across a matrix
};

/// The scales of a stage's products for a thread's elements: two rows, and pairs of columns.
template <bool kIsGradient> struct StageScales {
  float rows[2];
  float2 cols[kIsGradient ? kSums / 4 : 1];

  __device__ __forceinline__ void load(const Params &p, const Scales &scales, const Tile &tile,
                                       int64_t block, int rowOfThread) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int row = tile.row + min(rowOfThread + 8 * i, tile.rows - 1);
      rows[i] = __ldg(scales.a + block * scales.rowsOfA + row);
    }
    if constexpr (kIsGradient) {
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        int col = tile.col + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2;
        cols[j] = col < p.m ? __ldg(reinterpret_cast<const float2 *>(scales.b + block * p.m + col))
                            : float2{};
      }
    } else {
      int64_t square = int64_t{tile.group % p.groups} * scales.tilesOfB + tile.col / kTileCols;
      float ofColumns = __ldg(scales.b + square * scales.blocks + block);
      rows[0] *= ofColumns, rows[1] *= ofColumns;
    }
  }

  __device__ __forceinline__ float of(int sum) const {
    float row = rows[sum / 2 % 2];
    if constexpr (kIsGradient)
      return row * (sum % 2 == 0 ? cols[sum / 4].x : cols[sum / 4].y);
    else
      return row;
  }
};

template <bool kIsE5M2>
__device__ __forceinline__ void multiplyStage(hopper::Factor a, hopper::Factor b, int stage,
                                              float (&product)[kSums]) {
  uint32_t from = static_cast<uint32_t>(stage) * Sizes::kStageBytes;
  hopper::beginProducts();
#pragma unroll
  for (uint32_t step = 0; step < kRowBytes / 32; ++step)
    hopper::addProduct8<kIsE5M2>(product, a.at(from + step * 32), b.at(from + step * 32), step > 0);
  hopper::endProducts();
}

template <bool kIsE5M2, bool kHasBlocks, bool kIsGradient>
__device__ __forceinline__ void
multiply(const Params &p, const Scales &scales, const Ring<Sizes> &ring, const Tile &tile,
         int warpgroup, RingPosition<Sizes::kStages> &inRing, float (&sum)[kSums]) {
  int rowOfThread = warpgroup * kGroupRows + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 +
                    static_cast<int>(threadIdx.x) % kWarp / 4;
  int64_t block = kIsGradient ? ring.shared.begins[tile.group] / kDepthBlock : 0;
  // A gradient has one slot. A group without rows has one stage, whose product does not count.
  bool isThere = !kIsGradient || ring.shared.begins[tile.group] < ring.shared.ends[tile.group];
  hopper::Factor a = factorA(ring, warpgroup), b = factorB(ring);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    sum[i] = 0;
  for (int i = 0; i < tile.stages; ++i, ++inRing.count, ++block) {
    int stage = inRing.stage();
    // Scales are loaded before waiting for the stage, so that both latencies overlap.
    StageScales<kIsGradient> of;
    if constexpr (kHasBlocks)
      of.load(p, scales, tile, block, rowOfThread);
    hopper::waitFor(ring.full(stage), inRing.parity());
    float product[kSums];
    multiplyStage<kIsE5M2>(a, b, stage, product);
    hopper::waitForProducts<0>();
    release(ring, stage);
    if (isThere)
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        if constexpr (kHasBlocks)
          sum[j] += product[j] * of.of(j);
        else
          sum[j] += product[j];
  }
  if constexpr (!kHasBlocks) {
    if (isThere) {
      float scale =
          __ldg(scales.a + tile.group % p.groups) * __ldg(scales.b + tile.group % p.groups);
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        sum[j] *= scale;
    }
  }
}

__device__ __forceinline__ void writeTile(const Params &p, const Ring<Sizes> &ring,
                                          const Tile &tile, const float (&sum)[kSums]) {
  int warp = static_cast<int>(threadIdx.x) / kWarp - 4; // index among the multiplying warps
  int row = warp * 16;
  TileTarget to = {p.c, ring.shared.warps[warp], tile.first + int64_t{row} * p.m,
                   p.m, tile.rows - row,         tile.cols};
  Nothing extra;
  if (p.c.format == Format::F32 || p.c.accumulate)
    writeWide<false, true>(to, sum, extra);
  else if (p.c.format == Format::F16)
    writeNarrow<true>(to, sum, p.biases, extra);
  else
    writeNarrow<false>(to, sum, p.biases, extra);
}

template <bool kIsE5M2, bool kHasBlocks, bool kIsGradient>
__device__ __forceinline__ void multiplyTiles(const Params &p, const Scales &scales,
                                              const Ring<Sizes> &ring) {
  int warpgroup = groupOfWarp();
  RingPosition<Sizes::kStages> inRing;
  for (int count = 0;; ++count) {
    const Tile tile = nextTile(ring, inRing, count, warpgroup);
    if (tile.stages == 0)
      break;
    if (tile.rows <= warpgroup * kGroupRows || tile.cols <= 0) {
      skipTile(ring, tile, warpgroup, inRing);
      continue;
    }
    float sum[kSums];
    multiply<kIsE5M2, kHasBlocks, kIsGradient>(p, scales, ring, tile, warpgroup, inRing, sum);
    writeTile(p, ring, tile, sum);
  }
}

template <bool kIsE5M2, bool kHasBlocks, bool kIsGradient>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads)
    groupedTiles8(const __grid_constant__ Maps maps, const __grid_constant__ Params p,
                  const __grid_constant__ Scales scales) {
  runTiles<Sizes, kIsGradient ? Form::TransposedGradient : Form::AlongK>(
      maps, p, [&](const Ring<Sizes> &ring) {
        multiplyTiles<kIsE5M2, kHasBlocks, kIsGradient>(p, scales, ring);
      });
}

/// Describes both operands for the copy unit and launches the kernel. A gradient's second operand
/// is a matrix of rows, a forward product's is a stack of matrices.
template <bool kIsE5M2, bool kHasBlocks, bool kIsGradient>
void launch(const Grouped8 &g, Queue &queue) {
  const Grouped &call = g.call;
  uint32_t half = kTileCols / 2;
  bool isB3 = !call.isGradient;
  TiledTensor a = {g.a.codes, DType::F8E4M3, {g.a.depth, g.a.rows, 1}, {kDepthBlock, kGroupRows}};
  TiledTensor b = {g.b.codes,
                   DType::F8E4M3,
                   {g.b.depth, isB3 ? call.m : g.b.rows, isB3 ? call.groups : 1},
                   {kDepthBlock, half}};
  Maps maps;
  if (!encodeTensorMap(a, maps.a) || !encodeTensorMap(b, maps.b))
    return reportError(queue, "cuTensorMapEncodeTiled", cudaErrorInvalidValue);
  Params p = {g.list,
              dataOf(call.c),
              static_cast<int>(call.isGradient ? 1 : call.slots),
              static_cast<int>(call.groups),
              static_cast<int>(call.k),
              static_cast<int>(call.m)};
  setItems(p, ColumnCut::of(p.m, kTileCols, kTileCols));
  Scales scales = {static_cast<const float *>(g.a.scales), static_cast<const float *>(g.b.scales),
                   g.a.rows, static_cast<int>(g.b.depth / kDepthBlock),
                   static_cast<int>(ceilDiv(call.m, kTileCols))};
  launchPairs(groupedTiles8<kIsE5M2, kHasBlocks, kIsGradient>, clustersFor(call.multiprocessors),
              kSharedBytes<Sizes>, queue, maps, p, scales);
}

template <bool kIsE5M2, bool kHasBlocks> void launchForm(const Grouped8 &g, Queue &queue) {
  if (g.call.isGradient)
    launch<kIsE5M2, kHasBlocks, true>(g, queue);
  else
    launch<kIsE5M2, kHasBlocks, false>(g, queue);
}

} // namespace
} // namespace shardc::kernels::cuda::tiles

namespace shardc::kernels::cuda {

bool hasTiles(const Grouped8 &g) {
  return g.call.path == KernelPath::GroupedWgmma &&
         reinterpret_cast<uintptr_t>(g.call.c.data) % 16 == 0;
}

void launchTiles(const Grouped8 &g, Queue &queue) {
  bool hasBlocks = g.a.scaling != Scaling::Group;
  if (g.a.isE5M2)
    hasBlocks ? tiles::launchForm<true, true>(g, queue) : tiles::launchForm<true, false>(g, queue);
  else
    hasBlocks ? tiles::launchForm<false, true>(g, queue)
              : tiles::launchForm<false, false>(g, queue);
}

} // namespace shardc::kernels::cuda
