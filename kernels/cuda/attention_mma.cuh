// Shared by the forward and backward kernels of attention by mma.sync: sizes of heads, tiles of
// operands, dropout of the elements that a lane has.
#pragma once

#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/mma.cuh"

namespace shardc::kernels::cuda::heads {

/// Channels for which a kernel is compiled: of q and k, and of v. Heads with fewer are filled with
/// zeros in shared memory.
template <int kQ, int kV> struct HeadSize { static constexpr int kChannels = kQ, kValues = kV; };

/// Shared memory that a block has on every GPU since Ampere (KernelPaths.def).
constexpr int kMmaBytesMax = 99 << 10;

/// Calls launch.operator()<HeadSize, is fp16, has dropout>().
template <typename Launch> void forMmaKernels(const Operands &of, Launch launch) {
  auto ofSize = [&]<typename Size>() {
    auto ofType = [&]<bool kIsF16>() {
      of.p.mask.threshold > 0 ? launch.template operator()<Size, kIsF16, true>()
                              : launch.template operator()<Size, kIsF16, false>();
    };
    of.isF16 ? ofType.template operator()<true>() : ofType.template operator()<false>();
  };
  int channels = of.p.channels, values = of.p.values;
  if (channels <= 64 && values <= 64)
    ofSize.template operator()<HeadSize<64, 64>>();
  else if (channels <= 128 && values <= 128)
    ofSize.template operator()<HeadSize<128, 128>>();
  else if (channels <= 192 && values <= 128)
    ofSize.template operator()<HeadSize<192, 128>>();
  else
    ofSize.template operator()<HeadSize<256, 256>>();
}

/// The first element of one head in the first row of a sample.
__device__ __forceinline__ uint16_t *headOf(const HeadRows &of, int64_t firstRow, int column) {
  return static_cast<uint16_t *>(of.data.p) + firstRow * of.row + column;
}

/// Which of a lane's elements dropout drops: those of the queries from `row` on, with the numbers
/// of Dropout.h, and of keys from a multiple of 4 on.
struct Drops {
  const DropoutMask &mask;
  int64_t sample;
  uint32_t row; ///< number of the chunk's first query

  __device__ __forceinline__ Drops(const Params &p, const Chunk &chunk, int head, int sampleAt)
      : mask(p.mask), sample(p.samples[sampleAt]),
        row((p.firstHead + static_cast<uint32_t>(head)) * p.positions +
            static_cast<uint32_t>(chunk.position)) {}

  __device__ __forceinline__ float factor(uint32_t bits) const {
    return bits < mask.threshold ? 0.0f : mask.scale;
  }
  /// Factors of a tile of scores whose rows are queries: `query` is the lane's first one, `key` the
  /// tile's first key. Of two neighbouring lanes, the even one draws for the first query, the odd
  /// one for the second, and each gives the other two words.
  __device__ __forceinline__ void ofQueries(int query, int key, float (&factors)[4]) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const bool isOdd = t & 1;
    uint4 drawn = mask.bits(sample, row + static_cast<uint32_t>(query + (isOdd ? 8 : 0)),
                            static_cast<uint32_t>(key + 2 * t) / 4);
    uint32_t x = __shfl_xor_sync(0xffffffffu, isOdd ? drawn.x : drawn.z, 1);
    uint32_t y = __shfl_xor_sync(0xffffffffu, isOdd ? drawn.y : drawn.w, 1);
    factors[0] = factor(isOdd ? x : drawn.x), factors[1] = factor(isOdd ? y : drawn.y);
    factors[2] = factor(isOdd ? drawn.z : x), factors[3] = factor(isOdd ? drawn.w : y);
  }
  /// Factors of a tile whose rows are keys: `key` is the first one of its 16, `query` the first of
  /// the tile's queries. Four lanes, whose keys are neighbours, draw one block of words each.
  __device__ __forceinline__ void ofKeys(int key, int query, float (&factors)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, i = lane / 4 % 4;
    uint4 drawn = mask.bits(sample, row + static_cast<uint32_t>(query + lane % 4 * 2 + i % 2),
                            static_cast<uint32_t>(key + lane / 16 * 4 + i / 2 * 8) / 4);
    uint32_t words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    mma::transposeWords<4>(words);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      factors[e] = factor(words[e]);
  }
};

/// Enqueues a kernel with `bytes` of dynamic shared memory.
template <typename Kernel>
void launchTiles(Kernel kernel, dim3 grid, int threads, int bytes, const Params &p, Queue &queue) {
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launchKernel(kernel, grid, static_cast<unsigned>(threads), static_cast<size_t>(bytes), queue, p);
}

} // namespace shardc::kernels::cuda::heads
