// Quantisation with one scale per block: each block's amax, its power-of-two scale and its 8-bit
// codes. Used by kernels that quantise stored tensors and by kernels that quantise their own
// results.
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "runtime/base/Float8.h"

namespace shardc::kernels::cuda {

inline constexpr int kBlockCols = 128; ///< columns of a block

/// Words of a chunk: each has two numbers if chunks are packed, otherwise one.
template <Mode M> inline constexpr int kWords = kIsNarrow<M> ? kChunk / 2 : kChunk;
template <Mode M> __device__ __forceinline__ unsigned wordOf(const Chunk<M> &chunk, int i) {
  return reinterpret_cast<const unsigned *>(&chunk)[i];
}

/// The destination of 8-bit numbers and of their scales.
struct BlockTarget {
  uint8_t *q;
  void *scales; ///< f32, or e8m0 for blocks of 32
  bool isE5M2;
};

/// Result q of a call, and the result after it, which has the scales of q.
inline BlockTarget blockTargetOf(const Call &call, int q = 0) {
  return {static_cast<uint8_t *>(call.out[q].data), call.out[q + 1].data,
          call.out[q].dtype == DType::F8E5M2};
}

/// 2^(127 - code). 2^-127 is a subnormal number, without an exponent code.
__device__ __forceinline__ float powerDown(unsigned code) {
  return __uint_as_float(code == 254 ? 0x400000u : (254 - code) << 23);
}

/// Returns the multiplier of a block, from the bits of its amax. NaN if the amax is not finite.
/// `isWriter` also stores the scale, which is the reciprocal, at `index`.
template <ScaleBlocks kBlocks>
__device__ __forceinline__ float multiplierOfBlock(unsigned most, const BlockTarget &to,
                                                   int64_t index, bool isWriter) {
  float amax = __uint_as_float(most);
  if constexpr (kBlocks != ScaleBlocks::Rows32) {
    // The largest power of two that does not exceed limit/amax, up to 2^127. Both formats' limits
    // are 1.75 times a power of two, so the result is that power divided by the power of amax, or
    // half of this.
    constexpr unsigned kMantissaOfLimit = 0x600000u;
    unsigned exponent = most >> 23, isAbove = (most & 0x7fffffu) > kMantissaOfLimit ? 1 : 0;
    unsigned ofLimit = (to.isE5M2 ? 15 : 8) + 2 * 127;
    unsigned code = exponent == 0 ? 254 : min(ofLimit - exponent - isAbove, 254u);
    float multiplier = !isfinite(amax) ? __uint_as_float(kNan)
                       : most == 0     ? 1.0f
                                       : __uint_as_float(code << 23);
    if (isWriter)
      static_cast<float *>(to.scales)[index] = !isfinite(amax) ? multiplier
                                               : most == 0     ? 1.0f
                                                               : powerDown(code);
    return multiplier;
  }
  // The smallest power of two that is not below amax/limit, computed from its exponent.
  constexpr unsigned kNotFinite = 0xff;
  unsigned bits = __float_as_uint(amax * (to.isE5M2 ? 1.0f / 57344.0f : 1.0f / 448.0f));
  unsigned exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  bool isAbove = exponent == 0 ? mantissa > 0x400000u : mantissa > 0;
  unsigned code = isfinite(amax) ? min(exponent + (isAbove ? 1u : 0u), 0xfeu) : kNotFinite;
  if (isWriter)
    static_cast<uint8_t *>(to.scales)[index] = static_cast<uint8_t>(code);
  if (code == kNotFinite)
    return __uint_as_float(kNan);
  return code == 0 ? 1.0f : powerDown(code);
}

/// The larger of two amaxes, given as bits without the sign; two in a word if chunks are packed.
template <Mode M> __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
  return kIsNarrow<M> ? __vmaxu2(a, b) : max(a, b);
}
/// The numbers of a word without their signs.
template <Mode M> __device__ __forceinline__ unsigned amaxesOf(unsigned word) {
  return word & (kIsNarrow<M> ? 0x7fff7fffu : 0x7fffffffu);
}
/// Converts the bits of an amax to the bits of a float.
template <Mode M> __device__ __forceinline__ unsigned widened(unsigned magnitude) {
  if (M == Mode::F16)
    return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(magnitude))));
  return M == Mode::Bf16 ? magnitude << 16 : magnitude;
}

/// The amaxes of two chunks, in one word if chunks are packed.
template <Mode M> struct PairMost {
  static constexpr int kCount = kIsNarrow<M> ? 1 : 2;
  unsigned words[kCount] = {};

  PairMost() = default;
  __device__ __forceinline__ PairMost(const Chunk<M> &first, const Chunk<M> &second) {
    unsigned most[2] = {};
#pragma unroll
    for (int i = 0; i < kWords<M>; ++i) {
      most[0] = larger<M>(most[0], amaxesOf<M>(wordOf<M>(first, i)));
      most[1] = larger<M>(most[1], amaxesOf<M>(wordOf<M>(second, i)));
    }
    if constexpr (kIsNarrow<M>)
      words[0] =
          __vmaxu2(__byte_perm(most[0], most[1], 0x5410), __byte_perm(most[0], most[1], 0x7632));
    else
      words[0] = most[0], words[1] = most[1];
  }
  __device__ __forceinline__ unsigned of(int part) const {
    if constexpr (kIsNarrow<M>)
      return widened<M>(part == 0 ? words[0] & 0xffffu : words[0] >> 16);
    else
      return words[part];
  }
};

/// Sixteen adjacent threads of a warp, each with one chunk of each of the same kCount blocks of
/// 128. They find the amaxes of all blocks together with few exchanges. At the end, each thread has
/// the amax of one block.
template <Mode M, int kCount> class BlockTeam {
public:
  __device__ __forceinline__ explicit BlockTeam(const Chunk<M> (&chunks)[kCount]) {
    PairMost<M> pairs[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      if (2 * i < kCount)
        pairs[i] = PairMost<M>(chunks[2 * i], 2 * i + 1 < kCount
                                                  ? chunks[2 * i + 1 < kCount ? 2 * i + 1 : 0]
                                                  : Chunk<M>{});
    largest_ = joined<kThreads / 2>(pairs).of(lane() & 1);
  }

  /// Index of the block whose amax this thread has; kCount or more if it has none.
  __device__ __forceinline__ int slot() const { return lane() / kPerPair * 2 + (lane() & 1); }
  /// Whether this is the first of the threads that have this block's amax.
  __device__ __forceinline__ bool isFirst() const { return lane() % kPerPair < 2; }
  __device__ __forceinline__ unsigned largest() const { return largest_; }
  /// Returns the value `its` of the thread that has the amax of block `slot`.
  static __device__ __forceinline__ float of(int slot, float its) {
    return __shfl_sync(0xffffffffu, its, slot / 2 * kPerPair + slot % 2, kThreads);
  }

private:
  static constexpr int kThreads = 16;
  static constexpr int kPairs = kCount > 8 ? 8 : kCount > 4 ? 4 : kCount > 2 ? 2 : 1;
  static constexpr int kPerPair = kThreads / kPairs; ///< threads that end with the same pair
  static_assert(kCount <= 2 * kPairs);

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kThreads; }

  /// In each step, a thread exchanges pairs with the thread kOffset lanes away and keeps half of
  /// its pairs, until it has one.
  template <int kOffset, int kLeft>
  static __device__ __forceinline__ PairMost<M> joined(const PairMost<M> (&pairs)[kLeft]) {
    if constexpr (kOffset == 0) {
      return pairs[0];
    } else {
      constexpr int kKept = kLeft > 1 ? kLeft / 2 : 1;
      bool isUpper = (lane() & kOffset) != 0;
      PairMost<M> kept[kKept];
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        const PairMost<M> &low = pairs[i], &high = pairs[kLeft > 1 ? i + kKept : i];
#pragma unroll
        for (int w = 0; w < PairMost<M>::kCount; ++w) {
          unsigned given = isUpper ? low.words[w] : high.words[w];
          unsigned own = isUpper ? high.words[w] : low.words[w];
          kept[i].words[w] = larger<M>(own, __shfl_xor_sync(0xffffffffu, given, kOffset));
        }
      }
      return joined<kOffset / 2>(kept);
    }
  }

  unsigned largest_;
};

/// Returns the 8-bit codes of a thread's chunk of a block along a row. The kThreads adjacent
/// threads that share the block must all call it. Elements beyond the row's end must be 0.
template <Mode M, ScaleBlocks kBlocks>
__device__ __forceinline__ uint2 codesOfRowBlock(const Chunk<M> &chunk, const BlockTarget &to,
                                                 int64_t index, bool isWriter) {
  constexpr int kThreads = (kBlocks == ScaleBlocks::Rows32 ? 32 : 128) / kChunk;
  Amax<M> largest;
  largest.join(chunk);
  unsigned most = largest.bits();
#pragma unroll
  for (int offset = kThreads / 2; offset > 0; offset /= 2)
    most = max(most, __shfl_xor_sync(0xffffffffu, most, offset));
  float v[kChunk];
  floatsOf<M>(chunk, v);
  return convert(to.isE5M2, multiplierOfBlock<kBlocks>(most, to, index, isWriter), v);
}

} // namespace shardc::kernels::cuda
