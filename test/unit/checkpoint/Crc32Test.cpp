#include <string>

#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"

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

TEST(Crc32, AgreesWithTablesAtEveryLength) {
  std::string bytes = crcPattern(700);
  for (size_t size = 0; size <= bytes.size(); ++size)
    ASSERT_EQ(crc32(size, bytes.data(), size),
              crc32Tables(static_cast<uint32_t>(size), bytes.data(), size))
        << size;
}

TEST(Crc32, CombinesParts) {
  std::string bytes = crcPattern(5000);
  for (size_t cut : {0u, 1u, 63u, 64u, 4999u, 5000u}) {
    uint32_t a = crc32(0, bytes.data(), cut), b = crc32(0, bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(crc32Combine(a, b, bytes.size() - cut), crc32(0, bytes.data(), bytes.size())) << cut;
  }
}

} // namespace
} // namespace shardc::checkpoint
