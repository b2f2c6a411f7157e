// Compares blocks of 64 numbers in 4 bits with bitsandbytes. nf4_values.py prints the checksums.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"
#include "runtime/base/Nf4.h"
#include "runtime/base/Nf4Scales.h"
#include "test/unit/support/Long.h"

namespace shardc {
namespace {

constexpr uint32_t kBlock = Nf4Block::kNumbers;

struct Checksums {
  uint32_t records, numbers;
  bool operator==(const Checksums &) const = default;
};

Checksums checksumsOf(std::vector<float> numbers) {
  std::vector<Nf4Block> blocks;
  for (size_t i = 0; i < numbers.size(); i += kBlock) {
    blocks.push_back(toNf4(&numbers[i]));
    fromNf4(blocks.back(), &numbers[i]);
  }
  for (float &number : numbers)
    number += 0.0f; // -0 counts as 0
  return {crc32(0, blocks.data(), blocks.size() * sizeof(Nf4Block)),
          crc32(0, numbers.data(), numbers.size() * sizeof(float))};
}

/// Numbers with amaxes from 2^-30 on. The first block is zero.
std::vector<float> spread(uint32_t count) {
  std::vector<float> numbers(count);
  for (uint32_t i = kBlock; i < count; ++i)
    numbers[i] = static_cast<float>(static_cast<int32_t>(i * 2654435761u)) * 0x1p-31f *
                 std::exp2(-static_cast<float>(i / kBlock * 7 % 30));
  return numbers;
}

TEST(Nf4, RecordsAreBitsandbytes) {
  EXPECT_EQ(checksumsOf(spread(10'240)), (Checksums{0xeb97e044, 0x8cd8e347}));
  if (test::isLong()) {
    EXPECT_EQ(checksumsOf(spread(10'000'000)), (Checksums{0xb48e592e, 0x0ee9dd16}));
  }
}

TEST(Nf4, NumbersNearMiddlesAreBitsandbytes) {
  std::vector<float> numbers(5 * kBlock, 1.0f);
  for (size_t i = 0; i < kNf4Bounds.size(); ++i) {
    float middle = static_cast<float>((double{kNf4Values[i]} + double{kNf4Values[i + 1]}) / 2);
    numbers[i] = middle;
    size_t block = kBlock;
    for (float towards : {-INFINITY, INFINITY}) {
      float at = middle;
      for (int step = 0; step < 2; ++step, block += kBlock)
        numbers[block + i] = at = std::nextafter(at, towards);
    }
  }
  EXPECT_EQ(checksumsOf(numbers), (Checksums{0x3ef36177, 0x76249bf0}));
}

/// Codes and scales of the scales that blocks of such numbers have.
Checksums nestedOf(uint32_t count) {
  std::vector<float> numbers = spread(count), scales;
  for (size_t i = 0; i < numbers.size(); i += kBlock)
    scales.push_back(toNf4(&numbers[i]).scale);
  const Nf4Scales nested = toNf4Scales(scales);
  return {crc32(0, nested.codes.data(), nested.codes.size()),
          crc32(0, nested.groups.data(), nested.groups.size() * sizeof(float))};
}

TEST(Nf4, ScalesIn8BitsAreBitsandbytes) {
  EXPECT_EQ(crc32(0, kDynamicMap.data(), sizeof kDynamicMap), 0x1b137aebu);
  EXPECT_EQ(nestedOf(163'840), (Checksums{0x14110ff1, 0x025aa320}));
  if (test::isLong()) {
    EXPECT_EQ(nestedOf(10'000'000), (Checksums{0x7854f506, 0xe27c3062}));
  }
}

TEST(Nf4, NanStaysNan) {
  std::vector<float> numbers(kBlock, 1.0f);
  numbers[3] = std::numeric_limits<float>::quiet_NaN();
  fromNf4(toNf4(numbers.data()), numbers.data());
  EXPECT_TRUE(std::isnan(numbers[3]) && std::isnan(numbers[40]));
}

} // namespace
} // namespace shardc
