#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "runtime/checkpoint/Element.h"

namespace shardc::checkpoint {
namespace {

template <typename To, typename From> To convertOne(Element from, From value, Element to) {
  To result = {};
  convertElements(from, reinterpret_cast<const uint8_t *>(&value), to,
                  reinterpret_cast<uint8_t *>(&result), 1);
  return result;
}

TEST(Element, NamesFindTheirTypes) {
  EXPECT_EQ(elementOfTorchName("bfloat16"), Element::BF16);
  EXPECT_EQ(elementOfTorchStorage("CharStorage"), Element::I8);
  EXPECT_EQ(elementOfSafetensorsName("F8_E4M3"), Element::F8E4M3);
  EXPECT_EQ(elementOfTorchName(""), std::nullopt);
  EXPECT_EQ(elementOfTorchName("float31"), std::nullopt);
}

TEST(Element, CountsAndBytesAreCheckedForOverflow) {
  EXPECT_EQ(elementCount(Shape{}), 1);
  EXPECT_EQ(elementCount(Shape{3, 0, 5}), 0);
  EXPECT_EQ(elementCount(Shape{int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(elementCount(Shape{-1}), std::nullopt);
  EXPECT_EQ(tensorBytes(Element::F4, Shape{3}), std::nullopt);
  EXPECT_EQ(tensorBytes(Element::F4, Shape{4}), 2);
}

TEST(Element, Bf16RoundsToNearestEven) {
  EXPECT_EQ(convertOne<uint16_t>(Element::F32, 1.0f, Element::BF16), 0x3f80);
  EXPECT_EQ(convertOne<uint16_t>(Element::F32, 1.00390625f, Element::BF16),
            0x3f80); // a tie goes down to even
  EXPECT_EQ(convertOne<uint16_t>(Element::F32, 1.01171875f, Element::BF16),
            0x3f82); // a tie goes up to even
}

TEST(Element, EveryF8NumberSurvivesTheWayToF32AndBack) {
  for (Element type : {Element::F8E4M3, Element::F8E5M2})
    for (int bits = 0; bits < 256; ++bits) {
      auto value = convertOne<float>(type, static_cast<uint8_t>(bits), Element::F32);
      if (std::isnan(value))
        continue;
      EXPECT_EQ(convertOne<uint8_t>(Element::F32, value, type), bits) << "value " << value;
    }
}

TEST(Element, EveryF16NumberSurvivesTheWayToF32AndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    auto value = convertOne<float>(Element::F16, static_cast<uint16_t>(bits), Element::F32);
    if (std::isnan(value))
      continue;
    ASSERT_EQ(convertOne<uint16_t>(Element::F32, value, Element::F16), bits) << "value " << value;
  }
}

TEST(Element, LimitsOfSmallTypes) {
  EXPECT_EQ(convertOne<float>(Element::F8E4M3, uint8_t{0x7e}, Element::F32), 448.0f);
  EXPECT_EQ(convertOne<uint8_t>(Element::F32, 464.0f, Element::F8E4M3), 0x7e);
  EXPECT_EQ(convertOne<uint8_t>(Element::F32, 465.0f, Element::F8E4M3), 0x7f);
  EXPECT_EQ(convertOne<uint8_t>(Element::F32, 65536.0f, Element::F8E5M2), 0x7c);
  EXPECT_EQ(convertOne<uint16_t>(Element::F32, 65519.0f, Element::F16), 0x7bff);
  EXPECT_EQ(convertOne<uint16_t>(Element::F32, 65520.0f, Element::F16), 0x7c00);
  EXPECT_EQ(convertOne<float>(Element::F8E8M0, uint8_t{128}, Element::F32), 2.0f);
  EXPECT_EQ(convertOne<float>(Element::F8E4M3Fnuz, uint8_t{0x40}, Element::F32), 1.0f);
}

TEST(Element, IntegersAreNotConverted) {
  EXPECT_TRUE(isConvertible(Element::I64, Element::I64));
  EXPECT_FALSE(isConvertible(Element::I64, Element::F32));
  EXPECT_FALSE(isConvertible(Element::F32, Element::F8E8M0));
}

} // namespace
} // namespace shardc::checkpoint
