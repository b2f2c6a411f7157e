// Products with a factor for each run of rows, on the tensor cores of Hopper. Definitions stand in
// grouped_matmul.cu; factors are bf16 or f16, sums fp32 in the order of k, rounded once.
// Mapping: as many clusters of two blocks as fit the GPU take pieces of work in turns. A piece is
// two tiles of 128 by 256 elements with a factor in common, half of which each block loads for
// both: two tiles of a run, one below the other, share the columns of b; the last row of an odd
// number of tiles is taken in pairs that lie beside each other and share rows of a. So a run wastes
// no block. In a block, one thread finds the tiles and copies 64 along k at a time into a ring of
// shared memory; two warp groups multiply 64 rows each. The second one begins a little later, so
// that one multiplies while the other writes results. A group without rows multiplies nothing, and
// 128 columns are multiplied alone where a tile has no more. Eight pairs of tiles one below the
// other come before the next columns, so that a and b come from the L2. A gradient is the product
// of the transposed rows: its tiles have fixed places, and k is rows. Rows behind a run's end are
// loaded with the others of its last tile. In a product they are not written; in a gradient they
// are overwritten by zeros in shared memory first.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/TensorMap.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper.cuh"

namespace shardc::kernels::cuda {
namespace {

/// Which op, and where rows of b lie.
enum class Form : uint8_t {
  AlongK,   ///< a product with b[E,m,k]
  AcrossK,  ///< a product with b[E,k,m]
  Gradient, ///< both factors have rows across k
};

constexpr int kDepth = 64;     ///< of k in a stage of the ring
constexpr int kStages = 4;     ///< a power of two
constexpr int kTilesAhead = 8; ///< more than the copying thread is ahead, since a tile has a stage
constexpr int kGroupRows = 64; ///< of a tile, of one warp group
constexpr int kBlockCols = 64; ///< elements of 16 bits in a row of shared memory
constexpr int kBandPairs = 8;  ///< pairs of tiles, one below the other, before the next columns
constexpr int kRunsMax = 1024; ///< whose list fits shared memory

constexpr uint32_t kBytesOfA = kTileRows * kDepth * 2, kBytesOfB = kTileCols * kDepth * 2;
constexpr uint32_t kStageBytes = kBytesOfA + kBytesOfB;
constexpr uint32_t kBlockBytes = kBlockCols * kDepth * 2; ///< 64 rows of 128 bytes
constexpr uint32_t kWarpBytes = 16 * 128; ///< in which a warp turns results into rows

/// A block's tile as the copying thread announces it to those that multiply.
struct Tile {
  int64_t first;  ///< its first element in c
  int rows, cols; ///< that are there; none: 0 or less
  int stages;     ///< of the ring that hold it; 0: there are no more tiles
  int unused;
};

/// The shared memory of a block behind the stages. Both blocks of a cluster have the same layout.
struct Shared {
  uint8_t warps[8][kWarpBytes];
  uint64_t full[kStages], empty[kStages]; ///< barriers
  int depths[kStages];                    ///< rows of a gradient in a stage
  Tile tiles[kTilesAhead];
  int32_t firstItems[kRunsMax + 1], begins[kRunsMax], ends[kRunsMax];
};
constexpr uint32_t kRingBytes = kStages * kStageBytes;
constexpr uint32_t kSharedBytes = kRingBytes + sizeof(Shared);
static_assert(kSharedBytes <= 232448, "a block of Hopper has 227 KiB");

struct Maps {
  CUtensorMap a, b;
};

struct Params {
  RunList list;
  Data c;
  int slots, runs, k, m;
  int items; ///< of each run of a gradient
};

/// Where things are, as addresses of shared memory.
struct Ring {
  uint32_t stages;
  Shared &shared;

  __device__ uint32_t a(int stage) const {
    return stages + static_cast<uint32_t>(stage) * kStageBytes;
  }
  __device__ uint32_t b(int stage) const { return a(stage) + kBytesOfA; }
  __device__ uint32_t full(int stage) const {
    return hopper::sharedAddress(&shared.full[0]) + static_cast<uint32_t>(stage) * 8;
  }
  __device__ uint32_t empty(int stage) const {
    return hopper::sharedAddress(&shared.empty[0]) + static_cast<uint32_t>(stage) * 8;
  }
};

/// A position in the ring: counts stages.
struct Turn {
  uint32_t count = 0;

  __device__ int stage() const { return static_cast<int>(count % kStages); }
  __device__ int before() const { return static_cast<int>((count + kStages - 1) % kStages); }
  __device__ uint32_t parity() const { return count / kStages % 2; }
};

// ---- the thread that copies ----

/// Where a block's tile is.
struct Place {
  int run;      ///< in the list; of a gradient, the run of each slot
  int row, col; ///< of c, its first; rows of a product count from the run's first
  bool sharesA; ///< otherwise both blocks have the same columns of b
};

template <Form kForm, bool kIsB> class Copies {
public:
  __device__ Copies(const Maps &maps, const Params &p, const Ring &ring)
      : maps_(maps), p_(p), ring_(ring), rank_(static_cast<int>(hopper::blockOfCluster())) {}

  /// Copies all tiles of the cluster's pieces of work.
  __device__ void run() {
    const Shared &shared = ring_.shared;
    int items =
        kForm == Form::Gradient ? p_.items * p_.runs : shared.firstItems[p_.slots * p_.runs];
    int tile = 0;
    for (int item = static_cast<int>(blockIdx.x) / 2; item < items;
         item += static_cast<int>(gridDim.x) / 2, ++tile) {
      Place place = placeOf(item);
      if constexpr (!kIsB)
        announce(tile, place);
      copy(place);
    }
    if constexpr (kIsB)
      return;
    awaitStage();
    ring_.shared.tiles[tile % kTilesAhead].stages = 0;
    hopper::expectBytes(ring_.full(turn_.stage()), 0);
  }

private:
  __device__ Place placeOf(int item) {
    const Shared &shared = ring_.shared;
    Place place;
    int local, rows;
    if constexpr (kForm == Form::Gradient) {
      place.run = item / p_.items;
      local = item % p_.items, rows = p_.k;
    } else {
      while (shared.firstItems[run_ + 1] <= item)
        ++run_;
      place.run = run_;
      local = item - shared.firstItems[run_], rows = shared.ends[run_] - shared.begins[run_];
    }
    int tileCols = (p_.m + kTileCols - 1) / kTileCols;
    int pairs = (rows + kTileRows - 1) / kTileRows / 2;
    place.sharesA = local >= pairs * tileCols;
    if (place.sharesA) {
      place.row = 2 * pairs * kTileRows;
      place.col = (2 * (local - pairs * tileCols) + rank_) * kTileCols;
    } else {
      int band = local / (kBandPairs * tileCols), inBand = local % (kBandPairs * tileCols);
      int width = min(kBandPairs, pairs - band * kBandPairs);
      place.row = (2 * (band * kBandPairs + inBand % width) + rank_) * kTileRows;
      place.col = inBand / width * kTileCols;
    }
    return place;
  }

  __device__ int stagesOf(int rows) const { return (rows + kDepth - 1) / kDepth; }

  __device__ void announce(int tile, const Place &place) {
    Shared &shared = ring_.shared;
    Tile &to = shared.tiles[tile % kTilesAhead];
    int rows = 0;
    to.cols = p_.m - place.col;
    if constexpr (kForm == Form::Gradient) {
      to.first = (int64_t{place.run} * p_.k + place.row) * p_.m + place.col;
      to.rows = p_.k - place.row;
      for (int run = place.run; run < p_.slots * p_.runs; run += p_.runs)
        rows += stagesOf(shared.ends[run] - shared.begins[run]);
      to.stages = max(rows, 1);
    } else {
      int begin = shared.begins[place.run] + place.row;
      to.first = int64_t{begin} * p_.m + place.col;
      to.rows = shared.ends[place.run] - begin;
      to.stages = stagesOf(p_.k);
    }
  }

  __device__ void copy(const Place &place) {
    const Shared &shared = ring_.shared;
    if constexpr (kForm == Form::Gradient) {
      bool isEmpty = true;
      for (int run = place.run; run < p_.slots * p_.runs; run += p_.runs)
        for (int depth = shared.begins[run]; depth < shared.ends[run]; depth += kDepth) {
          copyStage(place, place.row, depth, 0, shared.ends[run] - depth);
          isEmpty = false;
        }
      if (isEmpty) // a stage that is zeroed
        copyStage(place, place.row, 0, 0, 0);
    } else {
      int row = shared.begins[place.run] + place.row;
      for (int depth = 0; depth < p_.k; depth += kDepth)
        copyStage(place, row, depth, place.run % p_.runs, kDepth);
    }
  }

  __device__ void awaitStage() { hopper::waitFor(ring_.empty(turn_.stage()), turn_.parity() ^ 1); }

  __device__ void copyStage(const Place &place, int row, int depth, int matrix, int rows) {
    int stage = turn_.stage();
    awaitStage();
    if constexpr (kIsB) {
      if (place.sharesA)
        for (int half = 0; half < 2; ++half)
          loadB(stage, half, place.col, depth, matrix, false);
      else
        loadB(stage, rank_, place.col, depth, matrix, true);
    } else {
      if constexpr (kForm == Form::Gradient)
        ring_.shared.depths[stage] = rows;
      hopper::expectBytes(ring_.full(stage), kStageBytes);
      if (place.sharesA)
        loadA(stage, rank_, row, depth, true);
      else
        for (int half = 0; half < 2; ++half)
          loadA(stage, half, row, depth, false);
    }
    ++turn_.count;
  }

  __device__ void load(const CUtensorMap &map, uint32_t to, int stage, hopper::Corner at,
                       bool forBoth) const {
    if (forBoth)
      hopper::loadTileForBoth(&map, to, ring_.full(stage), at);
    else
      hopper::loadTile(&map, to, ring_.full(stage), at);
  }
  /// Half of a tile's rows of a.
  __device__ void loadA(int stage, int half, int row, int depth, bool forBoth) const {
    row += half * kGroupRows;
    hopper::Corner at =
        kForm == Form::Gradient ? hopper::Corner{row, depth, 0} : hopper::Corner{depth, row, 0};
    load(maps_.a, ring_.a(stage) + static_cast<uint32_t>(half) * kBlockBytes, stage, at, forBoth);
  }
  /// Half of a tile's columns of b.
  __device__ void loadB(int stage, int half, int col, int depth, int matrix, bool forBoth) const {
    uint32_t to = ring_.b(stage) + static_cast<uint32_t>(half) * (kBytesOfB / 2);
    col += half * (kTileCols / 2);
    if constexpr (kForm == Form::AlongK) {
      load(maps_.b, to, stage, {depth, col, matrix}, forBoth);
    } else {
      load(maps_.b, to, stage, {col, depth, matrix}, forBoth);
      load(maps_.b, to + kBlockBytes, stage, {col + kBlockCols, depth, matrix}, forBoth);
    }
  }

  const Maps &maps_;
  const Params &p_;
  const Ring &ring_;
  int rank_, run_ = 0;
  Turn turn_;
};

// ---- warp groups that multiply ----

/// Zeroes rows [from, 64) of this group's block of a, and of b. Both groups do this for themselves,
/// so that neither waits for the other.
__device__ __forceinline__ void clearRows(const Ring &ring, int stage, int group, int from) {
  int thread = static_cast<int>(threadIdx.x) % 128;
  constexpr int kParts = kBlockBytes / 16, kPartsOfRow = 8; // of 16 bytes
  auto clear = [&](uint32_t block) {
    for (int i = from * kPartsOfRow + thread; i < kParts; i += 128)
      hopper::clear16(block + static_cast<uint32_t>(i) * 16);
  };
  clear(ring.a(stage) + static_cast<uint32_t>(group) * kBlockBytes);
  for (uint32_t i = 0; i < kTileCols / kBlockCols; ++i)
    clear(ring.b(stage) + i * kBlockBytes);
  hopper::fenceForCopies();
  hopper::syncThreads(1 + group, 128);
}

/// Adds the product of one stage.
template <Form kForm, bool kIsF16, int kCols>
__device__ __forceinline__ void addStage(const Ring &ring, int stage, int group, bool isFirst,
                                         float (&sum)[128]) {
  constexpr int kTransA = kForm == Form::Gradient, kTransB = kForm != Form::AlongK;
  constexpr uint32_t kStepOfA = kTransA ? 16 * 128 : 32, kStepOfB = kTransB ? 16 * 128 : 32;
  uint32_t a = ring.a(stage) + static_cast<uint32_t>(group) * kBlockBytes, b = ring.b(stage);
  hopper::beginProducts();
#pragma unroll
  for (uint32_t step = 0; step < kDepth / 16; ++step)
    hopper::addProduct<kCols, kIsF16, kTransA, kTransB>(
        sum, hopper::factorAt(a + step * kStepOfA, kBlockBytes),
        hopper::factorAt(b + step * kStepOfB, kBlockBytes), step > 0 || !isFirst);
  hopper::endProducts();
}

/// Tells both blocks that this group has read a stage.
__device__ __forceinline__ void release(const Ring &ring, int stage) {
  if (uint32_t block = threadIdx.x % 128; block < 2)
    hopper::arriveAt(ring.empty(stage), block);
}

/// Multiplies a tile's columns, the first 128 or all. `kCols` is 0 if this group has no rows.
template <Form kForm, bool kIsF16, int kCols>
__device__ __forceinline__ void multiply(const Ring &ring, int group, int stages, Turn &turn,
                                         float (&sum)[128]) {
  for (int i = 0; i < stages; ++i, ++turn.count) {
    int stage = turn.stage();
    hopper::waitFor(ring.full(stage), turn.parity());
    if constexpr (kCols == 0) {
      release(ring, stage);
    } else {
      if constexpr (kForm == Form::Gradient)
        if (int depth = ring.shared.depths[stage]; depth < kDepth)
          clearRows(ring, stage, group, depth);
      addStage<kForm, kIsF16, kCols>(ring, stage, group, i == 0, sum);
      hopper::waitForProducts<1>();
      if (i > 0)
        release(ring, turn.before());
    }
  }
  if constexpr (kCols > 0) {
    hopper::waitForProducts<0>();
    release(ring, turn.before());
  }
}

// ---- results ----

template <bool kIsF16> __device__ __forceinline__ uint32_t packed(float a, float b) {
  if constexpr (kIsF16) {
    __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
  }
}

/// The place of 16 bytes of a row in rows of 128 bytes.
__device__ __forceinline__ int placeOf(int row, int part) {
  return row * 128 + (part ^ (row & 7)) * 16;
}

/// Where a warp's 16 rows of results go.
struct Target {
  const Data &c;
  uint8_t *memory; ///< of the warp, 16 rows of 128 bytes
  int64_t first;   ///< the first element in c
  int m;           ///< the distance of rows
  int rows, cols;  ///< that are there; none: 0 or less

  __device__ bool has(int row, int col) const { return row < rows && col < cols; }
  __device__ int64_t at(int row, int col) const { return first + int64_t{row} * m + col; }
};

/// Rounds 64 columns at a time and writes them in rows of 128 bytes.
template <bool kIsF16>
__device__ __forceinline__ void writeNarrow(const Target &to, const float (&sum)[128]) {
  int lane = static_cast<int>(threadIdx.x) % kWarp, rowOfMatrix = lane % 8 + lane / 8 % 2 * 8;
  uint32_t memory = hopper::sharedAddress(to.memory);
#pragma unroll
  for (int block = 0; block < kTileCols / kBlockCols; ++block) {
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
      }
      hopper::storeMatrices(memory + static_cast<uint32_t>(placeOf(rowOfMatrix, j + lane / 16)),
                            words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int row = 4 * i + lane / 8, col = block * kBlockCols + lane % 8 * kChunk;
      if (to.has(row, col))
        __stcs(chunkOf(to.c, to.at(row, col)),
               *reinterpret_cast<const uint4 *>(to.memory + placeOf(row, lane % 8)));
    }
  }
}

/// Writes 32 columns at a time in fp32, or adds them, also to results of 16 bits, which so are
/// rounded once.
template <bool kIsF16, bool kIsWide>
__device__ __forceinline__ void writeWide(const Target &to, const float (&sum)[128]) {
  constexpr int kCols = kBlockCols / 2;
  constexpr Mode kMode = kIsWide ? Mode::Mixed : kIsF16 ? Mode::F16 : Mode::Bf16;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int block = 0; block < kTileCols / kCols; ++block) {
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
      store8<kMode>(to.c, to.at(row, col), kChunk, v);
    }
  }
}

template <Form kForm, bool kIsF16, bool kIsWide>
__device__ __forceinline__ void writeTile(const Params &p, const Ring &ring, const Tile &tile,
                                          int group, const float (&sum)[128]) {
  int warp = static_cast<int>(threadIdx.x) / kWarp - 4; // of both groups
  int row = warp * 16;
  Target to = {p.c, ring.shared.warps[warp], tile.first + int64_t{row} * p.m,
               p.m, tile.rows - row,         tile.cols};
  if constexpr (kIsWide) {
    writeWide<kIsF16, true>(to, sum);
  } else {
    if (kForm == Form::Gradient && p.c.accumulate)
      writeWide<kIsF16, false>(to, sum);
    else
      writeNarrow<kIsF16>(to, sum);
  }
}

template <Form kForm, bool kIsF16, bool kIsWide>
__device__ __forceinline__ void multiplyTiles(const Params &p, const Ring &ring) {
  int group = static_cast<int>(threadIdx.x) / 128 - 1;
  Turn turn;
  float sum[128];
  for (int count = 0;; ++count) {
    hopper::waitFor(ring.full(turn.stage()), turn.parity());
    const Tile &tile = ring.shared.tiles[count % kTilesAhead];
    if (tile.stages == 0)
      break;
    if (tile.rows <= group * kGroupRows || tile.cols <= 0) {
      multiply<kForm, kIsF16, 0>(ring, group, tile.stages, turn, sum);
      continue;
    }
    if (tile.cols <= kTileCols / 2)
      multiply<kForm, kIsF16, kTileCols / 2>(ring, group, tile.stages, turn, sum);
    else
      multiply<kForm, kIsF16, kTileCols>(ring, group, tile.stages, turn, sum);
    writeTile<kForm, kIsF16, kIsWide>(p, ring, tile, group, sum);
  }
}

// ---- the kernel ----

constexpr int kThreads = 384; ///< a warp group that copies, two that multiply

__device__ __forceinline__ void begin(const Params &p, const Ring &ring) {
  Shared &shared = ring.shared;
  if (threadIdx.x == 0) {
    if (ring.stages % 1024 != 0)
      __trap(); // swizzled tiles begin at multiples of 1024 bytes
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::initBarrier(ring.full(stage), 1);
      hopper::initBarrier(ring.empty(stage), 4); // of two warp groups of two blocks
    }
    hopper::fenceBarriers();
  }
  int all = p.slots * p.runs;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
    shared.begins[i] = p.list.begins[i];
    shared.ends[i] = p.list.ends[i];
    shared.firstItems[i] = p.list.firstItems[i];
  }
  if (threadIdx.x == 0)
    shared.firstItems[all] = p.list.firstItems[all];
  __syncthreads();
  hopper::syncCluster();
}

template <Form kForm, bool kIsF16, bool kIsWide>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads)
    groupedTiles(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  awaitPrevious();
  extern __shared__ __align__(1024) uint8_t memory[];
  Ring ring = {hopper::sharedAddress(memory), *reinterpret_cast<Shared *>(memory + kRingBytes)};
  begin(p, ring);
  if (threadIdx.x < 128) {
    hopper::giveRegisters<40>();
    if (threadIdx.x == 0)
      Copies<kForm, false>(maps, p, ring).run();
    else if (threadIdx.x == kWarp)
      Copies<kForm, true>(maps, p, ring).run();
  } else {
    hopper::takeRegisters<232>();
    multiplyTiles<kForm, kIsF16, kIsWide>(p, ring);
  }
  __syncwarp();
  hopper::syncCluster(); // the other block may still copy to this one
}

bool isHopper() {
  static const bool answer = [] {
    int device = 0, major = 0, minor = 0;
    bool isKnown =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
    return isKnown && major == 9 && minor == 0;
  }();
  return answer;
}

bool makeMaps(const Grouped &g, Form form, Maps &maps) {
  TiledTensor a = {g.a.data, g.a.dtype, {g.k, g.a.rows(), 1}, {kBlockCols, kDepth}};
  TiledTensor b = {g.b.data, g.b.dtype, {g.m, g.b.rows(), 1}, {kBlockCols, kDepth}};
  if (form == Form::AlongK)
    b = {g.b.data, g.b.dtype, {g.k, g.m, g.runs}, {kDepth, kTileCols / 2}};
  else if (form == Form::AcrossK)
    b = {g.b.data, g.b.dtype, {g.m, g.k, g.runs}, {kBlockCols, kDepth}};
  return encodeTensorMap(a, maps.a) && encodeTensorMap(b, maps.b);
}

template <Form kForm, bool kIsF16, bool kIsWide>
void launch(const Grouped &g, const RunList &list, Queue &queue) {
  Maps maps;
  if (!makeMaps(g, kForm, maps))
    return reportError(queue, "cuTensorMapEncodeTiled", cudaErrorInvalidValue);
  Params p = {list,
              dataOf(g.c),
              static_cast<int>(g.slots),
              static_cast<int>(g.runs),
              static_cast<int>(g.k),
              static_cast<int>(g.m)};
  int tileRows = (p.k + kTileRows - 1) / kTileRows, tileCols = (p.m + kTileCols - 1) / kTileCols;
  p.items = tileRows / 2 * tileCols + tileRows % 2 * ((tileCols + 1) / 2);
  auto *kernel = groupedTiles<kForm, kIsF16, kIsWide>;
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  int device = 0, blocks = 0;
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  if (g.multiprocessors > 0)
    blocks = std::min(blocks, static_cast<int>(g.multiprocessors));
  blocks = std::max(blocks / 2, 1) * 2;
  launchKernel(kernel, static_cast<unsigned>(blocks), kThreads, kSharedBytes, queue, maps, p);
}

template <bool kIsF16> void launchType(const Grouped &g, const RunList &list, Queue &queue) {
  if (g.isGradient && g.c.dtype == DType::F32)
    launch<Form::Gradient, kIsF16, true>(g, list, queue);
  else if (g.isGradient)
    launch<Form::Gradient, kIsF16, false>(g, list, queue);
  else if (g.transB)
    launch<Form::AlongK, kIsF16, false>(g, list, queue);
  else
    launch<Form::AcrossK, kIsF16, false>(g, list, queue);
}

} // namespace

bool hasTiles(const Grouped &g) {
  bool fits = g.a.dtype == g.b.dtype && (g.a.dtype == DType::BF16 || g.a.dtype == DType::F16);
  fits &= g.c.dtype == g.a.dtype || (g.isGradient && g.c.dtype == DType::F32);
  fits &= g.k % kChunk == 0 && g.m % kChunk == 0 && g.allRuns() <= kRunsMax;
  for (const Tensor *t : {&g.a, &g.b, &g.c})
    fits &= reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
  return fits && isHopper();
}

void launchTiles(const Grouped &g, const RunList &list, Queue &queue) {
  if (g.a.dtype == DType::F16)
    launchType<true>(g, list, queue);
  else
    launchType<false>(g, list, queue);
}

} // namespace shardc::kernels::cuda
