// Scales of blocks, for the kernels that quantise what is stored and those that make it.
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "runtime/base/Float8.h"

namespace shardc::kernels::cuda {

/// Numbers of 8 bits with their scales.
struct BlockTarget {
  uint8_t *q;
  void *scales; ///< f32, or e8m0 of blocks of 32
  bool isE5M2;
};

/// Result q of a call, whose scales are the next one.
inline BlockTarget blockTargetOf(const Call &call, int q = 0) {
  return {static_cast<uint8_t *>(call.out[q].data), call.out[q + 1].data,
          call.out[q].dtype == DType::F8E5M2};
}

/// 2^(127 - code), of which 2^-127 has no exponent of its own.
__device__ __forceinline__ float powerDown(unsigned code) {
  return __uint_as_float(code == 254 ? 0x400000u : (254 - code) << 23);
}

/// Writes the scale of a block with the largest magnitude of these bits, and gives its reciprocal.
template <ScaleBlocks kBlocks>
__device__ __forceinline__ float multiplierOfBlock(unsigned most, const BlockTarget &to,
                                                   int64_t index, bool isWriter) {
  float amax = __uint_as_float(most);
  if constexpr (kBlocks != ScaleBlocks::Rows32) {
    // The largest power of two that is not above limit/amax, up to 2^127. Both limits are 1.75
    // times a power of two, so it is that power over amax's, or half of it.
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
  // The smallest power of two that is not below amax/limit, by its exponent.
  constexpr unsigned kNotFinite = 0xff;
  unsigned bits = __float_as_uint(amax * (to.isE5M2 ? 1.0f / 57344.0f : 1.0f / 448.0f));
  unsigned exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  bool isAbove = exponent == 0 ? mantissa > 0x400000u : mantissa > 0;
  unsigned code = isfinite(amax) ? min(exponent + (isAbove ? 1u : 0u), 0xfeu) : kNotFinite;
  if (isWriter)
    static_cast<uint8_t *>(to.scales)[index] = static_cast<uint8_t>(code);
  if (code == kNotFinite)
    return __uint_as_float(kNan);
  if (code == 0)
    return 1.0f;
  return powerDown(code);
}

/// The codes of a thread's chunk of a block within a row, which kThreads neighbours of a warp have,
/// all of them here; what is past the row's end is 0.
template <Mode M, ScaleBlocks kBlocks>
__device__ __forceinline__ uint2 codesOfRowBlock(const Chunk<M> &chunk, const BlockTarget &to,
                                                 int64_t index, bool isWriter) {
  constexpr int kThreads = (kBlocks == ScaleBlocks::Rows32 ? 32 : 128) / kChunk;
  Magnitude<M> largest;
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
