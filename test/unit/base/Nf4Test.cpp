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
    EXPECT_EQ(checksumsOf(spread(10'000'384)), (Checksums{0xe66b5489, 0x83a4d49b}));
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
  EXPECT_EQ(checksumsOf(numbers), (Checksums{0xcd3eb792, 0x8464df84}));
}

/// Of the codes and groups of these numbers' scales in 8 bits, and of the numbers of records with
/// them. The weight has one record in a row.
struct NestedChecksums {
  uint32_t codes, groups, numbers;
  bool operator==(const NestedChecksums &) const = default;
};

NestedChecksums nestedOf(int64_t rows) {
  std::vector<float> numbers = spread(static_cast<uint32_t>(rows * Nf4Record::kNumbers)), scales;
  for (size_t i = 0; i < numbers.size(); i += kBlock)
    scales.push_back(nf4ScaleOf(&numbers[i]));
  const Nf4Scales made = toNf4Scales(scales);
  NestedScales nested(rows, Nf4Record::kNumbers);
  for (int64_t row = 0; row < rows; ++row)
    nested.setRow(row, made, row);
  nested.divisors = scales;
  nested.round(numbers.data(), 0, rows);
  for (float &number : numbers)
    number += 0.0f;
  return {crc32(0, made.codes.data(), made.codes.size()),
          crc32(0, made.groups.data(), made.groups.size() * sizeof(float)),
          crc32(0, numbers.data(), numbers.size() * sizeof(float))};
}

TEST(Nf4, RecordsWithScalesIn8BitsAreBitsandbytes) {
  EXPECT_EQ(crc32(0, kDynamicMap.data(), sizeof kDynamicMap), 0x1b137aebu);
  EXPECT_EQ(nestedOf(320), (NestedChecksums{0x14110ff1, 0x025aa320, 0xa2b44c68}));
  if (test::isLong()) {
    EXPECT_EQ(nestedOf(19'532), (NestedChecksums{0x541c9119, 0x84f1a6aa, 0x923d3e11}));
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
