// fp32 master weights in two 16-bit halves: the bf16 weight and a remainder
// (runtime/base/Remainder.h defines the format). Bitwise equal to the host's functions. A NaN
// master becomes the quiet NaN of the same sign.
#pragma once

#include <cstdint>

namespace shardc::kernels::cuda {

/// The two halves of a master weight: the bits of the bf16 weight and of the remainder.
struct MasterBits {
  uint32_t weight, remainder; ///< 16 bits in each word
};

/// Splits a master weight; the weight is rounded to nearest, ties away from zero.
__device__ __forceinline__ MasterBits splitMaster(float master) {
  uint32_t bits = __float_as_uint(master);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    bits = (bits & 0x80000000u) | 0x7fc00000u;
  return {((bits >> 16) + (bits >> 15 & 1)) & 0xffffu, bits & 0xffffu};
}

/// The master weight of two halves; exactly the one that splitMaster() split, unless it was NaN.
__device__ __forceinline__ float joinMaster(uint32_t weight, uint32_t remainder) {
  return __uint_as_float((weight - (remainder >> 15)) << 16 | remainder);
}

/// Joins two adjacent weights and remainders, each pair in one 32-bit word with the first in the
/// low half.
__device__ __forceinline__ void joinMasters(uint32_t weights, uint32_t remainders, float *masters) {
  masters[0] = joinMaster(weights & 0xffffu, remainders & 0xffffu);
  masters[1] = joinMaster(weights >> 16, remainders >> 16);
}
/// The inverse of joinMasters().
__device__ __forceinline__ void splitMasters(const float *masters, uint32_t &weights,
                                             uint32_t &remainders) {
  MasterBits first = splitMaster(masters[0]), second = splitMaster(masters[1]);
  weights = first.weight | second.weight << 16;
  remainders = first.remainder | second.remainder << 16;
}

} // namespace shardc::kernels::cuda
