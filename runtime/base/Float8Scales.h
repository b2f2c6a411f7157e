// Quantisation to 8 bits by one amax: the multiplier of numbers, and how they are rounded.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/base/DType.h"
#include "runtime/base/Float8.h"

namespace shardc {

/// The largest number of an 8-bit type.
inline float limitOf(DType type) { return type == DType::F8E5M2 ? 57344.0f : 448.0f; }

/// The bits of a float without its sign. They are ordered like absolute values, and NaNs are the
/// largest.
inline uint32_t magnitudeBits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

/// The float with such bits. Every NaN becomes the same NaN.
inline float floatOfLargest(uint32_t most) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  return most > kInfinity ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(most);
}

/// The multiplier of numbers with this amax before rounding. NaN if the amax is not finite.
inline float multiplierOf(float amax, DType type) {
  if (!std::isfinite(amax))
    return std::numeric_limits<float>::quiet_NaN();
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
/// The number that an 8-bit code stands for. It must still be divided by the multiplier.
inline float ofBits(uint8_t bits, DType type) {
  return type == DType::F8E5M2 ? toFloat(F8E5M2{bits}) : toFloat(F8E4M3{bits});
}

} // namespace shardc
