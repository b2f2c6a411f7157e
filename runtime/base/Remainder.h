// Splits an fp32 master weight into two 16-bit halves: the bf16 weight with which layers compute,
// and a remainder. The weight is the master, rounded to the nearest bf16 with ties away from zero.
// The remainder has the low 16 bits of the master. If the highest bit of the remainder is set, the
// weight was rounded up, so the upper half of the master is the weight's bits minus 1. With ties to
// even, this would be ambiguous. Except for NaNs, the format equals that of Transformer Engine's
// FusedAdam (`store_param_remainders`), which turns the weight of some NaNs into a number.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

/// Both halves of one element; a plan keeps them in two cells.
struct MasterHalves {
  BF16 weight;
  uint16_t remainder;
};

/// Different numbers have different halves. All NaNs with the same sign have the same halves.
inline MasterHalves splitMaster(float master) {
  uint32_t bits = std::bit_cast<uint32_t>(master);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    bits = (bits & 0x80000000u) | 0x7fc00000u;
  auto remainder = static_cast<uint16_t>(bits);
  return {{static_cast<uint16_t>((bits >> 16) + (remainder >> 15))}, remainder};
}

/// The master that splitMaster() split; a NaN becomes another NaN of the same sign.
inline float joinMaster(BF16 weight, uint16_t remainder) {
  uint32_t upper = weight.bits - static_cast<uint32_t>(remainder >> 15);
  return std::bit_cast<float>(upper << 16 | remainder);
}

} // namespace shardc
