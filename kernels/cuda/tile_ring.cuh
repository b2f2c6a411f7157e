// Shared by products on Hopper's tensor cores: a ring of stages in shared memory. A stage holds 128
// bytes along k of each row of a tile's two operands. In a block, one warpgroup copies and two
// multiply. Two blocks form a cluster and share copies.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper.cuh"

namespace shardc::kernels::cuda::tiles {

constexpr int kTilesAhead = 8; ///< how many tiles the copying warpgroup may announce ahead
constexpr int kGroupRows = 64; ///< rows of a tile that one warpgroup multiplies
constexpr int kBlockCols = 64; ///< elements of 16 bits in a row of shared memory
constexpr int kGroupsMax = kGroupsOfTilesMax; ///< groups whose list fits into shared memory

constexpr int kPartRows = 16; ///< elements along k of one instruction with 16-bit operands

constexpr uint32_t kRowBytes = 128;                   ///< of a row in shared memory
constexpr uint32_t kBytesOfA = kTileRows * kRowBytes; ///< in a stage
constexpr uint32_t kBlockBytes = 64 * kRowBytes;      ///< 64 rows
constexpr uint32_t kPartBytes = kPartRows * kRowBytes;
constexpr uint32_t kWarpBytes =
    16 * kRowBytes; ///< shared memory in which a warp arranges results in rows

/// Sizes of a kernel: columns of a tile, elements along k in a stage, stages.
template <int kTileCols_, int kDepth_, int kStages_> struct TileSizes {
  static constexpr int kTileCols = kTileCols_, kDepth = kDepth_, kStages = kStages_;
  static constexpr uint32_t kBytesOfB = kTileCols * kRowBytes, kStageBytes = kBytesOfA + kBytesOfB;
  static constexpr uint32_t kRingBytes = kStages * kStageBytes;
};

/// A block's tile, as the copying warpgroup announces it to the multiplying warpgroups.
struct Tile {
  int64_t first;  ///< index in c of its first element
  int rows, cols; ///< valid rows and columns; none if 0 or less; rows may exceed the tile
  int stages;     ///< stages of the ring that hold it; 0: no more tiles
  int group;      ///< index in the list
  int row, col;   ///< its first row in a and first column in b
};

/// Shared memory of a block after the stages. Both blocks of a cluster have the same layout, so
/// that one can address the other's.
template <typename Sizes> struct Shared {
  uint8_t warps[kWarpsThatMultiply][kWarpBytes];
  uint64_t full[Sizes::kStages], empty[Sizes::kStages]; ///< barriers
  uint64_t left[kTilesAhead];                           ///< barriers: an announcement has been read
  Tile tiles[kTilesAhead];
  int32_t begins[kGroupsMax], ends[kGroupsMax];
  union {
    int32_t firstItems[kGroupsMax + 1]; ///< of a product
    int32_t order[kGroupsMax];          ///< the groups of a gradient, in the order of orderGroups()
  };
};
template <typename Sizes>
inline constexpr uint32_t kSharedBytes = Sizes::kRingBytes + sizeof(Shared<Sizes>);

/// Shared-memory addresses of the ring.
template <typename Sizes> struct Ring {
  uint32_t stages;
  Shared<Sizes> &shared;

  __device__ uint32_t a(int stage) const {
    return stages + static_cast<uint32_t>(stage) * Sizes::kStageBytes;
  }
  __device__ uint32_t b(int stage) const { return a(stage) + kBytesOfA; }
  __device__ uint32_t full(int stage) const {
    return hopper::sharedAddress(&shared.full[0]) + static_cast<uint32_t>(stage) * 8;
  }
  __device__ uint32_t empty(int stage) const {
    return hopper::sharedAddress(&shared.empty[0]) + static_cast<uint32_t>(stage) * 8;
  }
  /// The barrier at which the multiplying warps arrive after they have read a tile's announcement.
  __device__ uint32_t left(int tile) const {
    return hopper::sharedAddress(&shared.left[tile % kTilesAhead]);
  }
  __device__ Tile &tile(int tile) const { return shared.tiles[tile % kTilesAhead]; }
  __device__ static uint32_t parityOf(int tile) { return tile / kTilesAhead % 2; }
};

/// A position in the ring: the number of stages since the start of the kernel.
template <int kStages> struct RingPosition {
  uint32_t count = 0;

  __device__ int stage() const { return static_cast<int>(count % kStages); }
  __device__ int before() const { return static_cast<int>((count + kStages - 1) % kStages); }
  __device__ uint32_t parity() const { return count / kStages % 2; }
};

// ---- threads that copy ----

/// What threads that copy share: they wait for free stages and announcements, and start copies.
template <typename Sizes> class RingWriter {
protected:
  __device__ explicit RingWriter(const Ring<Sizes> &ring)
      : ring_(ring), rank_(static_cast<int>(hopper::blockOfCluster())) {}

  /// Waits until the slot of an announcement is free.
  __device__ void awaitTile(int tile) {
    hopper::waitFor(ring_.left(tile), ring_.parityOf(tile) ^ 1);
  }
  __device__ void awaitStage() {
    hopper::waitFor(ring_.empty(inRing_.stage()), inRing_.parity() ^ 1);
  }
  __device__ void load(const CUtensorMap &map, uint32_t to, int stage, hopper::Corner at,
                       bool forBoth) const {
    if (forBoth)
      hopper::loadTileForBoth(&map, to, ring_.full(stage), at);
    else
      hopper::loadTile(&map, to, ring_.full(stage), at);
  }
  /// Announces that there are only `tiles` tiles.
  __device__ void announceEnd(int tiles) {
    awaitTile(tiles);
    ring_.tile(tiles).stages = 0;
    awaitStage();
    hopper::expectBytes(ring_.full(inRing_.stage()), 0);
  }

  const Ring<Sizes> &ring_;
  int rank_;
  RingPosition<Sizes::kStages> inRing_;
};

// ---- warpgroups that multiply ----

/// Signals both blocks of the cluster that this warpgroup has read a stage.
template <typename Sizes>
__device__ __forceinline__ void release(const Ring<Sizes> &ring, int stage) {
  if (uint32_t block = threadIdx.x % 128; block < 2)
    hopper::arriveAt(ring.empty(stage), block);
}

/// Index of this warp's multiplying warpgroup, computed so that the compiler knows it is uniform.
__device__ __forceinline__ int groupOfWarp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
}

/// Descriptors of the operands in the first stage; those of stage i are i·kStageBytes later.
template <typename Sizes>
__device__ __forceinline__ hopper::Factor factorA(const Ring<Sizes> &ring, int warpgroup) {
  return {ring.a(0) + static_cast<uint32_t>(warpgroup) * kBlockBytes, kBlockBytes};
}
template <typename Sizes>
__device__ __forceinline__ hopper::Factor factorB(const Ring<Sizes> &ring) {
  return {ring.b(0), kBlockBytes};
}

/// Waits for the other warps of the warpgroup. Otherwise a fast warp would release stages, and the
/// tiles in them, before the others have read them.
__device__ __forceinline__ void syncGroup(int warpgroup) {
  hopper::syncThreads(1 + warpgroup, 128);
}

/// Waits for the first stage of the next tile and returns the tile. All warps of the group must
/// have finished the previous one. The first thread of a warp reads the announcement for the
/// others.
template <typename Sizes>
__device__ __forceinline__ Tile nextTile(const Ring<Sizes> &ring,
                                         const RingPosition<Sizes::kStages> &inRing, int count,
                                         int warpgroup) {
  hopper::waitFor(ring.full(inRing.stage()), inRing.parity());
  syncGroup(warpgroup);
  Tile tile = {};
  if (threadIdx.x % kWarp == 0) {
    tile = ring.tile(count);
    hopper::arrive(ring.left(count));
  }
  tile.first = __shfl_sync(0xffffffffu, tile.first, 0);
  for (int *field : {&tile.rows, &tile.cols, &tile.stages, &tile.group, &tile.row, &tile.col})
    *field = __shfl_sync(0xffffffffu, *field, 0);
  return tile;
}

/// Releases the stages of a tile in which this warpgroup multiplies nothing. In other tiles, the
/// products themselves keep the warps together.
template <typename Sizes>
__device__ __forceinline__ void skipTile(const Ring<Sizes> &ring, const Tile &tile, int warpgroup,
                                         RingPosition<Sizes::kStages> &inRing) {
  int stages = tile.stages;
  for (int i = 0; i < stages; ++i, ++inRing.count) {
    hopper::waitFor(ring.full(inRing.stage()), inRing.parity());
    syncGroup(warpgroup);
    release(ring, inRing.stage());
  }
}

/// Adds the product of the first `kParts` parts of a stage, each 16 elements along k. `kTransA`,
/// `kTransB`: the rows of the operand are across k.
template <typename Sizes, bool kTransA, bool kTransB, bool kIsF16, int kCols, int kParts>
__device__ __forceinline__ void addStage(hopper::Factor a, hopper::Factor b, int stage,
                                         bool isFirst, float (&sum)[128]) {
  constexpr uint32_t kAcross = kPartRows * kRowBytes, kAlong = kPartRows * 2; // bytes of a part
  constexpr uint32_t kPartOfA = kTransA ? kAcross : kAlong, kPartOfB = kTransB ? kAcross : kAlong;
  uint32_t from = static_cast<uint32_t>(stage) * Sizes::kStageBytes;
  hopper::beginProducts();
#pragma unroll
  for (uint32_t part = 0; part < kParts; ++part)
    hopper::addProduct<kCols, kIsF16, kTransA, kTransB>(
        sum, a.at(from + part * kPartOfA), b.at(from + part * kPartOfB), part > 0 || !isFirst);
  hopper::endProducts();
}

/// Calls `add` with each stage of a tile, and whether it is the first, and releases the stages.
template <typename Sizes, typename Add>
__device__ __forceinline__ void addStages(const Ring<Sizes> &ring, const Tile &tile,
                                          RingPosition<Sizes::kStages> &inRing, const Add &add) {
  int stages = tile.stages;
  for (int i = 0; i < stages; ++i, ++inRing.count) {
    int stage = inRing.stage();
    hopper::waitFor(ring.full(stage), inRing.parity());
    add(stage, i == 0);
    hopper::waitForProducts<1>();
    if (i > 0)
      release(ring, inRing.before());
  }
  hopper::waitForProducts<0>();
  release(ring, inRing.before());
}

// ---- the kernel ----

constexpr int kThreads = 384; ///< one copying and two multiplying warpgroups

template <typename Sizes> __device__ __forceinline__ void initBarriers(const Ring<Sizes> &ring) {
  if (ring.stages % 1024 != 0)
    __trap(); // swizzled tiles begin at multiples of 1024 bytes
  for (int stage = 0; stage < Sizes::kStages; ++stage) {
    hopper::initBarrier(ring.full(stage), 1);
    // One arrival per warpgroup: two warpgroups in each of two blocks.
    hopper::initBarrier(ring.empty(stage), 4);
  }
  for (int tile = 0; tile < kTilesAhead; ++tile)
    hopper::initBarrier(ring.left(tile), 8); // one arrival per multiplying warp
  hopper::fenceBarriers();
}

/// A kernel with a ring. All threads call `prepare`. Then one warpgroup copies: two of its threads
/// call `copy`, with whether they copy b. The two others call `multiply`.
template <typename Sizes, typename Prepare, typename Copy, typename Multiply>
__device__ __forceinline__ void runRing(const Prepare &prepare, const Copy &copy,
                                        const Multiply &multiply) {
  awaitPrevious();
  extern __shared__ __align__(1024) uint8_t memory[];
  Ring<Sizes> ring = {hopper::sharedAddress(memory),
                      *reinterpret_cast<Shared<Sizes> *>(memory + Sizes::kRingBytes)};
  if (threadIdx.x == 0)
    initBarriers(ring);
  prepare(ring);
  __syncthreads();
  hopper::syncCluster();
  if (threadIdx.x < 128) {
    hopper::giveRegisters<40>();
    if (threadIdx.x == 0)
      copy(ring, std::false_type());
    else if (threadIdx.x == kWarp)
      copy(ring, std::true_type());
  } else {
    hopper::takeRegisters<232>();
    multiply(ring);
  }
  __syncwarp();
  hopper::syncCluster(); // the other block may still write to this one
}

// ---- on the host ----

/// The number of clusters of two blocks that fit on the GPU, or on `multiprocessors` of its SMs.
inline int clustersFor(int32_t multiprocessors) {
  int device = 0, blocks = 0;
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  if (multiprocessors > 0)
    blocks = std::min(blocks, static_cast<int>(multiprocessors));
  return std::clamp(blocks / 2, 1, kBlocksMax / 2);
}

/// Launches clusters of two blocks.
template <typename... Args>
void launchPairs(void (*kernel)(Args...), int clusters, uint32_t sharedBytes, Queue &queue,
                 const auto &...args) {
  static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(sharedBytes)));
  launchKernel(kernel, static_cast<unsigned>(2 * clusters), kThreads, sharedBytes, queue, args...);
}

} // namespace shardc::kernels::cuda::tiles
