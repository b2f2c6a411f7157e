// Halves of master weights: joining them gives each number bitwise, and the weight is the number
// rounded to the nearest bf16.
#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "runtime/base/Remainder.h"

namespace shardc {
namespace {

bool isTie(uint32_t bits) { return (bits & 0xffffu) == 0x8000u; }

/// Fails for the first number whose halves are wrong.
void checkHalves(uint32_t bits) {
  auto master = std::bit_cast<float>(bits);
  MasterHalves halves = splitMaster(master);
  float joined = joinMaster(halves.weight, halves.remainder);
  if (std::isnan(master)) {
    ASSERT_TRUE(std::isnan(joined) && std::isnan(toFloat(halves.weight))) << std::hex << bits;
    ASSERT_EQ(std::signbit(joined), std::signbit(master)) << std::hex << bits;
    return;
  }
  ASSERT_EQ(std::bit_cast<uint32_t>(joined), bits) << std::hex;
  if (!isTie(bits)) {
    ASSERT_EQ(halves.weight.bits, toBF16(master).bits) << std::hex << bits;
  } else {
    ASSERT_EQ(std::bit_cast<uint32_t>(toFloat(halves.weight)), (bits & 0xffff0000u) + 0x10000u)
        << std::hex << bits;
  }
}

/// Tries all upper halves with the lower halves at which rounding changes, and the reverse.
TEST(Remainder, NumbersComeBackToTheBit) {
  for (uint32_t upper = 0; upper < 1u << 16; ++upper)
    for (uint32_t low : {0u, 1u, 0x4001u, 0x7fffu, 0x8000u, 0x8001u, 0xc000u, 0xffffu}) {
      checkHalves(upper << 16 | low);
      if (HasFatalFailure())
        return;
    }
  // Zeros, denormals, ones, odd and even numbers next to ties, the largest, infinities, NaNs.
  for (uint32_t upper : {0u, 1u, 2u, 0x7fu, 0x80u, 0x3f80u, 0x3f81u, 0x7f7fu, 0x7f80u, 0x7fffu,
                         0x8000u, 0xbf80u, 0xff7fu, 0xff80u, 0xffffu})
    for (uint32_t low = 0; low < 1u << 16; ++low) {
      checkHalves(upper << 16 | low);
      if (HasFatalFailure())
        return;
    }
}

TEST(Remainder, TheLargestNumbersRoundToInfinity) {
  MasterHalves halves = splitMaster(std::numeric_limits<float>::max());
  EXPECT_EQ(toFloat(halves.weight), std::numeric_limits<float>::infinity());
  EXPECT_EQ(joinMaster(halves.weight, halves.remainder), std::numeric_limits<float>::max());
}

} // namespace
} // namespace shardc
