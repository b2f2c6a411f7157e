// Quantisation of factors to 8 bits: their multipliers, and how they are rounded.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/base/DType.h"
#include "runtime/base/Float8.h"

namespace shardc::kernels::host {

/// The largest number of an 8-bit type.
inline float limitOf(DType type) { return type == DType::F8E5M2 ? 57344.0f : 448.0f; }

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The bits of a float without its sign. They are ordered like absolute values, and NaNs are the
/// largest.
inline uint32_t magnitudeBits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

/// The float with such bits. Every NaN becomes the same NaN.
inline float floatOfLargest(uint32_t most) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  return most > kInfinity ? kNan : std::bit_cast<float>(most);
}

/// The multiplier of numbers with this amax before rounding. NaN if the amax is not finite.
inline float multiplierOf(float amax, DType type) {
  if (!std::isfinite(amax))
    return kNan;
  if (amax == 0)
    return 1;
  float quotient = limitOf(type) / amax;
  return std::isinf(quotient) ? std::numeric_limits<float>::max() : quotient;
}

/// The 8-bit code of x, rounded to nearest even and saturated, as GPUs convert.
inline uint8_t toBits(float x, DType type) {
  constexpr uint8_t kNanBits = 0x7f;
  if (std::isnan(x))
    return kNanBits;
  return type == DType::F8E5M2 ? toF8E5M2(x, Overflow::Saturate).bits
                               : toF8E4M3(x, Overflow::Saturate).bits;
}
inline float ofBits(uint8_t bits, DType type) {
  return type == DType::F8E5M2 ? toFloat(F8E5M2{bits}) : toFloat(F8E4M3{bits});
}

/// The scale of a block, a power of two, and the multiplier of its numbers.
struct BlockScale {
  float multiplier, scale;
  uint8_t bits = 0; ///< the scale as e8m0
};

/// The largest power-of-two multiplier with which the block does not overflow; if isE8M0, the
/// multiplier of the smallest e8m0 scale.
inline BlockScale blockScaleOf(float amax, DType type, bool isE8M0) {
  if (isE8M0) {
    uint8_t bits = std::isfinite(amax) ? toE8M0(amax * (1.0f / limitOf(type))) : 0xff;
    float multiplier = bits == 0xff ? kNan
                       : bits == 0  ? 1.0f
                                    : toFloatE8M0(static_cast<uint8_t>(254 - bits));
    return {multiplier, toFloatE8M0(bits), bits};
  }
  constexpr uint32_t kNoMantissa = 0xff800000u;
  float multiplier = multiplierOf(amax, type);
  if (!std::isnan(multiplier))
    multiplier = std::bit_cast<float>(std::bit_cast<uint32_t>(multiplier) & kNoMantissa);
  return {multiplier, 1.0f / multiplier};
}

} // namespace shardc::kernels::host
