#include "runtime/data/NumpyRandom.h"

#include <numeric>

#include "test/unit/data/TestData.h"

namespace shardc::data {
namespace {

TEST(NumpyRandom, ShufflesAsRandomState) {
  std::vector<std::string> cases = goldenNames("shuffle.", "");
  EXPECT_EQ(cases.size(), 4u);
  for (const std::string &name : cases) {
    size_t dot = name.find('.');
    std::vector<uint32_t> values(std::stoul(name.substr(dot + 1)));
    std::iota(values.begin(), values.end(), 0u);
    NumpyRandom random(static_cast<uint32_t>(std::stoul(name.substr(0, dot))));
    random.shuffle(std::span(values));
    EXPECT_EQ(asInts(values), golden("shuffle." + name)) << name;
  }
}

TEST(NumpyRandom, DrawsSixtyFourBitsBeyondThirtyTwo) {
  NumpyRandom random(99);
  for (int64_t expected : golden("interval64"))
    EXPECT_EQ(random.interval((uint64_t{1} << 40) + 5), static_cast<uint64_t>(expected));
}

TEST(NumpyRandom, AnIntervalOfOneNumberDrawsNothing) {
  NumpyRandom random(3), other(3);
  EXPECT_EQ(random.interval(0), 0u);
  EXPECT_EQ(random.next32(), other.next32());
}

} // namespace
} // namespace shardc::data
