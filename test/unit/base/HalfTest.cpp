// Compares conversions between fp32 and the 16-bit types with PyTorch's. half_values.py prints the
// checksums.
#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"
#include "runtime/base/DType.h"

namespace shardc {
namespace {

template <typename T> uint32_t checksum(const std::vector<T> &values) {
  return crc32(0, values.data(), values.size() * sizeof(T));
}

/// Floats of every size, as their bits.
std::vector<float> spreadFloats() {
  std::vector<float> floats;
  for (uint32_t i = 0; i < 1u << 20; ++i)
    floats.push_back(std::bit_cast<float>(i * 2654435761u));
  return floats;
}

TEST(Half, EveryCodeIsPyTorchsFloat) {
  std::vector<uint32_t> floats;
  for (uint32_t code = 0; code < 1u << 16; ++code) {
    F16 half{static_cast<uint16_t>(code)};
    float value = toFloat(half);
    EXPECT_EQ(std::isnan(value), (code & 0x7fffu) > 0x7c00u) << code;
    floats.push_back(std::isnan(value) ? 0u : std::bit_cast<uint32_t>(value));
    if (!std::isnan(value))
      EXPECT_EQ(toF16(value).bits, code);
    else
      EXPECT_TRUE(std::isnan(toFloat(toF16(value)))) << code;
  }
  EXPECT_EQ(checksum(floats), 0xef9d25e2u);
}

TEST(Half, FloatsRoundAsPyTorchs) {
  std::vector<uint16_t> halves, brains;
  for (float value : spreadFloats()) {
    halves.push_back(std::isnan(value) ? 0u : toF16(value).bits);
    brains.push_back(std::isnan(value) ? 0u : toBF16(value).bits);
    EXPECT_EQ(std::isnan(toFloat(toF16(value))), std::isnan(value));
  }
  EXPECT_EQ(checksum(halves), 0x61541ad7u);
  EXPECT_EQ(checksum(brains), 0xe3f1007eu);
}

TEST(Half, FloatsBetweenCodesRoundToEven) {
  std::vector<float> middles;
  for (uint16_t code = 0; code + 1 < 0x7c00; ++code)
    middles.push_back((toFloat(F16{code}) + toFloat(F16{static_cast<uint16_t>(code + 1)})) / 2);
  std::vector<uint16_t> halves;
  for (float towards : {0.0f, NAN, INFINITY})
    for (float middle : middles)
      halves.push_back(toF16(std::isnan(towards) ? middle : std::nextafter(middle, towards)).bits);
  EXPECT_EQ(checksum(halves), 0x54274301u);
}

} // namespace
} // namespace shardc
