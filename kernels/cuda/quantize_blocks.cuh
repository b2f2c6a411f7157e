// Scales of blocks, for the kernels that quantise what is stored and those that make it.
#pragma once

#include "kernels/cuda/quantize.cuh"
#include "runtime/base/Float8.h"

namespace shardc::kernels::cuda {

/// Numbers of 8 bits with their scales.
struct BlockTarget {
  uint8_t *q;
  void *scales; ///< f32, or e8m0 of blocks of 32
  bool isE5M2;
};

/// Writes the scale of a block with the largest magnitude of these bits, and gives its reciprocal.
template <ScaleBlocks kBlocks>
__device__ __forceinline__ float multiplierOfBlock(unsigned most, const BlockTarget &to,
                                                   int64_t index, bool isWriter) {
  float amax = __uint_as_float(most);
  if constexpr (kBlocks != ScaleBlocks::Rows32) {
    constexpr unsigned kNoMantissa = 0xff800000u;
    float multiplier = multiplierOf(amax, to.isE5M2);
    if (!isnan(multiplier))
      multiplier = __uint_as_float(__float_as_uint(multiplier) & kNoMantissa);
    if (isWriter)
      static_cast<float *>(to.scales)[index] = reciprocal(multiplier);
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
  return __uint_as_float(code == 254 ? 0x400000u : (254 - code) << 23);
}

/// The codes of a thread's 8 elements of a block within a row, which kThreads neighbours of a warp
/// have, all of them here; those past the row's end are 0.
template <ScaleBlocks kBlocks>
__device__ __forceinline__ uint2 codesOfRowBlock(const float (&v)[kChunk], const BlockTarget &to,
                                                 int64_t index, bool isWriter) {
  constexpr int kThreads = (kBlocks == ScaleBlocks::Rows32 ? 32 : 128) / kChunk;
  unsigned most = largestOf(0, v);
#pragma unroll
  for (int offset = kThreads / 2; offset > 0; offset /= 2)
    most = max(most, __shfl_xor_sync(0xffffffffu, most, offset));
  return convert(to.isE5M2, multiplierOfBlock<kBlocks>(most, to, index, isWriter), v);
}

} // namespace shardc::kernels::cuda
