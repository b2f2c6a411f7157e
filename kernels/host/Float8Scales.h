// The multipliers of blocks of operands in 8 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/base/Float8Scales.h"

namespace shardc::kernels::host {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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
