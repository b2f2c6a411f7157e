#include "compiler/basic/Numbers.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

TEST(Numbers, HaveNoExponent) {
  EXPECT_EQ(formatNumber(0), "0");
  EXPECT_EQ(formatNumber(0.25), "0.25");
  EXPECT_EQ(formatNumber(12.3456), "12.35");
  EXPECT_EQ(formatNumber(999.96), "1,000");
  EXPECT_EQ(formatNumber(1000), "1,000");
  EXPECT_EQ(formatNumber(122300), "122,300");
  EXPECT_EQ(formatNumber(1234567.4), "1,234,567");
  EXPECT_EQ(formatNumber(-123), "-123");
  EXPECT_EQ(formatNumber(-1234567), "-1,234,567");
  EXPECT_EQ(formatNumber(3e14), "300,000,000,000,000");
}

TEST(Numbers, DurationsHaveTheUnitThatKeepsThemShort) {
  EXPECT_EQ(formatDuration(85e-6), "85 us");
  EXPECT_EQ(formatDuration(0.76534), "765.3 ms");
  EXPECT_EQ(formatDuration(122.3), "122.3 s");
  EXPECT_EQ(formatDuration(2710.2), "2,710 s");
  EXPECT_EQ(formatDuration(41000), "11.4 h");
}

} // namespace
} // namespace shardc
