#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"
#include "runtime/checkpoint/Integrity.h"

namespace shardc::checkpoint {
namespace {

std::string crcPattern(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char &byte : bytes)
    byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

TEST(Crc32, KnowsTheCheckValue) { EXPECT_EQ(crc32(0, "123456789", 9), 0xcbf43926u); }

TEST(Crc32, OfManyBytesIsThatOfOneAfterTheOther) {
  std::string bytes = crcPattern(700);
  for (uint32_t previous : {0u, 1u, 0xdeadbeefu}) {
    uint32_t one = previous;
    for (size_t size = 0; size < bytes.size(); one = crc32(one, bytes.data() + size++, 1))
      ASSERT_EQ(crc32(previous, bytes.data(), size), one) << size;
  }
}

TEST(Crc32, CombinesParts) {
  std::string bytes = crcPattern(5000);
  for (size_t cut : {0u, 1u, 63u, 64u, 4999u, 5000u}) {
    uint32_t a = crc32(0, bytes.data(), cut), b = crc32(0, bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(crc32Combine(a, b, bytes.size() - cut), crc32(0, bytes.data(), bytes.size())) << cut;
  }
}

TEST(Crc32, BlocksGiveTheSumOfWhatIsAdded) {
  std::string bytes = crcPattern(3 * kIntegrityBlock + 100);
  for (size_t first : {size_t{0}, size_t{1}, size_t{kIntegrityBlock} - 1, size_t{kIntegrityBlock},
                       2 * size_t{kIntegrityBlock} + 5}) {
    BlockChecksums sums;
    EXPECT_EQ(sums.add(bytes.data(), first), crc32(0, bytes.data(), first)) << first;
    size_t rest = bytes.size() - first;
    EXPECT_EQ(sums.add(bytes.data() + first, rest), crc32(0, bytes.data() + first, rest)) << first;
    ASSERT_EQ(sums.blocks().size(), 4u);
    for (size_t block = 0; block < 4; ++block)
      EXPECT_EQ(sums.blocks()[block],
                crc32(0, bytes.data() + block * kIntegrityBlock,
                      std::min<size_t>(kIntegrityBlock, bytes.size() - block * kIntegrityBlock)))
          << first << ", block " << block;
  }
}

} // namespace
} // namespace shardc::checkpoint
