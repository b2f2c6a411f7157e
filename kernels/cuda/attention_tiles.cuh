// Shared by the forward and backward kernels of attention on Hopper's tensor cores: tiles in shared
// memory that tensor maps copy, and products of warpgroups. heads.cuh has what does not depend on
// the architecture.
#pragma once

#include "kernels/cuda/grouped_tiles.cuh"
#include "kernels/cuda/heads.cuh"

namespace shardc::kernels::cuda::heads {

using tiles::kBlockCols; ///< channels in a row of shared memory
using tiles::kGroupRows;
using tiles::kPartBytes; ///< bytes of 16 rows
using tiles::kRowBytes;
using tiles::kThreads;
using tiles::kTileRows; ///< rows of queries or keys of one block
using tiles::RingPosition;
constexpr uint32_t kStepBytes = 32; ///< bytes of 16 channels

/// Maps of the tensors from which tiles are copied.
struct Maps {
  CUtensorMap q, k, v, dOut;   ///< tiles of 128 rows
  CUtensorMap halfQ, halfDOut; ///< tiles of 64 rows
};

/// A tile of kRows rows of one head in shared memory, as blocks of 64 channels.
template <int kRows, int kChannels> struct TileOf {
  static constexpr uint32_t kBlockBytes = kRows * kRowBytes;
  static constexpr uint32_t kBytes = kChannels / kBlockCols * kBlockBytes;
  static constexpr int kSteps = kChannels / 16;

  /// An operand of the rows from `first` on, with rows along k. step(i) is the offset of channel
  /// 16·i.
  __device__ __forceinline__ static hopper::Factor rows(uint32_t address, int first) {
    return {address + static_cast<uint32_t>(first) * kRowBytes, kBlockBytes};
  }
  __device__ __forceinline__ static uint32_t step(int i) {
    return static_cast<uint32_t>(i / 4) * kBlockBytes + static_cast<uint32_t>(i % 4) * kStepBytes;
  }
  __device__ __forceinline__ static void load(const CUtensorMap &map, uint32_t to, uint32_t barrier,
                                              int column, int row, int sample) {
#pragma unroll
    for (int b = 0; b < kChannels / kBlockCols; ++b)
      hopper::loadTile(&map, to + static_cast<uint32_t>(b) * kBlockBytes, barrier,
                       {column + b * kBlockCols, row, sample});
  }
};

/// sums = a·bᵀ over the channels of a head. Commits one group of products.
template <typename A, typename B, bool kIsF16, int kSums>
__device__ __forceinline__ void multiplyRows(float (&sums)[kSums], const hopper::Factor &a,
                                             const hopper::Factor &b) {
#pragma unroll
  for (int i = 0; i < A::kSteps; ++i)
    hopper::addProductOf<2 * kSums, kIsF16, 0>(sums, a.at(A::step(i)), b.at(B::step(i)), i > 0);
  hopper::endProducts();
}

/// Rounds sums to 16 bits, in the register layout of a first operand.
template <bool kIsF16, int kSums>
__device__ __forceinline__ void pack(const float (&sums)[kSums], uint32_t (&packed)[kSums / 2]) {
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i)
    packed[i] = cuda::packed<kIsF16>(sums[2 * i], sums[2 * i + 1]);
}

/// sums += a·b, with a packed in registers. The registers must not change until the
/// products are complete. Commits one group of products.
template <bool kIsF16, int kSums, int kWords>
__device__ __forceinline__ void addProducts(float (&sums)[kSums], const uint32_t (&a)[kWords],
                                            const hopper::Factor &b) {
  hopper::settle(sums);
  hopper::beginProducts();
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i)
    hopper::addProductFrom<2 * kSums, kIsF16, 1>(sums, a + 4 * i,
                                                 b.at(static_cast<uint32_t>(i) * kPartBytes));
  hopper::endProducts();
}

template <int kStages>
__device__ __forceinline__ uint32_t stageOf(const RingPosition<kStages> &inRing) {
  return static_cast<uint32_t>(inRing.stage());
}

/// Shared-memory address of barrier i.
__device__ __forceinline__ uint32_t barrier(const uint64_t *all, uint32_t i) {
  return hopper::sharedAddress(all) + i * 8;
}

/// Frees a stage of the ring after a warp has read it.
__device__ __forceinline__ void release(uint32_t empty) {
  if (threadIdx.x % kWarp == 0)
    hopper::arrive(empty);
}

/// Writes a warpgroup's 64 rows of one head through `memory`, 8 KiB of shared memory that no other
/// warpgroup uses.
template <int kChannels, bool kIsF16>
__device__ __forceinline__ void writeRows(const HeadRows &to, uint8_t *memory, int64_t sampleRow,
                                          int row, int rows, int column,
                                          const float (&sums)[kChannels / 2]) {
  int warp = static_cast<int>(threadIdx.x) % 128 / kWarp;
  row += 16 * warp;
  tiles::TileTarget target = {to.data,
                              memory + warp * 16 * static_cast<int>(kRowBytes),
                              (sampleRow + row) * to.row + column,
                              static_cast<int>(to.row),
                              rows - row,
                              kChannels};
  tiles::Nothing nothing;
  tiles::writeNarrow<kIsF16>(target, sums, tiles::Biases{}, nothing);
}

// ---- on the host ----

/// The operands of a call, and the maps of their tiles.
struct TileOperands : Operands {
  Maps maps;
  bool isThere; ///< the driver has encoded all tensor maps

  TileOperands(const Call &call, const AttentionOp &op);
};

/// Calls launch.operator()<channels of a head, whether fp16>().
template <typename Launch> void forHeads(const TileOperands &of, Launch launch) {
  auto ofChannels = [&]<int kChannels>() {
    of.isF16 ? launch.template operator()<kChannels, true>()
             : launch.template operator()<kChannels, false>();
  };
  of.p.channels == kBlockCols ? ofChannels.template operator()<kBlockCols>()
                              : ofChannels.template operator()<2 * kBlockCols>();
}

} // namespace shardc::kernels::cuda::heads
