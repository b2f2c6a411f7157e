// Compares conversions between fp32 and the 8-bit types with PyTorch's. float8_values.py prints the
// checksums.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"
#include "runtime/base/Float8.h"

namespace shardc {
namespace {

template <typename T> struct Format;
template <> struct Format<F8E4M3> {
  static constexpr auto narrow = toF8E4M3;
  static constexpr uint32_t end = 0x7f; ///< the first code past the finite numbers
  static constexpr float largest = 448;
  static constexpr Overflow asPyTorch = Overflow::Saturate;
  static constexpr uint32_t ofCodes = 0xbcca99f4, ofSpread = 0x825754b3, ofMiddles = 0x35373115;
};
template <> struct Format<F8E5M2> {
  static constexpr auto narrow = toF8E5M2;
  static constexpr uint32_t end = 0x7c;
  static constexpr float largest = 57344;
  static constexpr Overflow asPyTorch = Overflow::Special;
  static constexpr uint32_t ofCodes = 0xd73df2ea, ofSpread = 0x1224a676, ofMiddles = 0xfc8b3b45;
};

template <typename T> uint32_t checksumOf(const std::vector<T> &values) {
  return crc32(0, values.data(), values.size() * sizeof(T));
}

template <typename T> uint8_t codeOf(float value, Overflow overflow = Format<T>::asPyTorch) {
  T code = Format<T>::narrow(value, overflow);
  return std::isnan(toFloat(code)) ? uint8_t{0} : code.bits;
}

template <typename T> class Float8 : public ::testing::Test {};
using Formats = ::testing::Types<F8E4M3, F8E5M2>;
TYPED_TEST_SUITE(Float8, Formats);

TYPED_TEST(Float8, EveryCodeIsPyTorchsFloat) {
  std::vector<uint32_t> floats;
  for (uint32_t code = 0; code < 256; ++code) {
    float value = toFloat(TypeParam{static_cast<uint8_t>(code)});
    floats.push_back(std::isnan(value) ? 0u : std::bit_cast<uint32_t>(value));
    EXPECT_TRUE(std::isnan(value) ||
                Format<TypeParam>::narrow(value, Overflow::Special).bits == code);
  }
  EXPECT_EQ(checksumOf(floats), Format<TypeParam>::ofCodes);
}

TYPED_TEST(Float8, FloatsRoundAsPyTorchs) {
  std::vector<uint8_t> codes(10'000'000);
  for (uint32_t i = 0; i < codes.size(); ++i)
    codes[i] = codeOf<TypeParam>(std::bit_cast<float>(i * 2654435761u));
  EXPECT_EQ(checksumOf(codes), Format<TypeParam>::ofSpread);
}

TYPED_TEST(Float8, FloatsBetweenCodesRoundToEven) {
  std::vector<float> middles;
  for (uint32_t code = 0; code + 1 < Format<TypeParam>::end; ++code)
    middles.push_back((toFloat(TypeParam{static_cast<uint8_t>(code)}) +
                       toFloat(TypeParam{static_cast<uint8_t>(code + 1)})) /
                      2);
  std::vector<uint8_t> codes;
  for (float towards : {0.0f, NAN, INFINITY})
    for (float middle : middles)
      codes.push_back(
          codeOf<TypeParam>(std::isnan(towards) ? middle : std::nextafter(middle, towards)));
  EXPECT_EQ(checksumOf(codes), Format<TypeParam>::ofMiddles);
}

TYPED_TEST(Float8, WhatIsTooLargeBecomesTheLargest) {
  constexpr float kLargest = Format<TypeParam>::largest;
  for (uint32_t i = 0; i < 1u << 20; ++i) {
    float value = std::bit_cast<float>(i * 2654435761u);
    float clamped = std::isnan(value) ? value : std::clamp(value, -kLargest, kLargest);
    ASSERT_EQ(codeOf<TypeParam>(value, Overflow::Saturate), codeOf<TypeParam>(clamped)) << value;
  }
  for (float value : {kLargest * 1.07f, 1e30f, INFINITY}) {
    EXPECT_EQ(toFloat(Format<TypeParam>::narrow(value, Overflow::Saturate)), kLargest) << value;
    EXPECT_EQ(toFloat(Format<TypeParam>::narrow(-value, Overflow::Saturate)), -kLargest) << value;
  }
  EXPECT_TRUE(std::isnan(toFloat(Format<TypeParam>::narrow(NAN, Overflow::Saturate))));
}

} // namespace
} // namespace shardc
