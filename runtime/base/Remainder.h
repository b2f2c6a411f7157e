// Master weights in two halves of 16 bits: the weight that layers compute with, and the remainder,
// which is what it lacks. The weight is the master rounded to the nearest bf16, ties away from
// zero; the remainder has the master's low 16 bits. Where its highest bit is set, the weight was
// rounded up, so its bits are one too many. Rounded to even in ties, the weight would not say which
// of two masters it was. The form, but for NaNs, is that of Transformer Engine's FusedAdam
// (`store_param_remainders`), whose weight of some NaNs is a number.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

struct MasterHalves {
  BF16 weight;
  uint16_t remainder;
};

/// Each number has halves of its own. All NaNs of a sign have those of one NaN.
inline MasterHalves splitMaster(float master) {
  uint32_t bits = std::bit_cast<uint32_t>(master);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    bits = (bits & 0x80000000u) | 0x7fc00000u;
  auto remainder = static_cast<uint16_t>(bits);
  return {{static_cast<uint16_t>((bits >> 16) + (remainder >> 15))}, remainder};
}

inline float joinMaster(BF16 weight, uint16_t remainder) {
  uint32_t upper = weight.bits - static_cast<uint32_t>(remainder >> 15);
  return std::bit_cast<float>(upper << 16 | remainder);
}

} // namespace shardc
