// Sentences of ranks, said once for the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/launch/Texts.h"

namespace shardc::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Texts, AreSaidOnceWithWhoGaveThem) {
  EXPECT_THAT(mergeTexts({{"a", "b"}, {"a"}, {"c", "a"}, {"a", "c"}}),
              ElementsAre("a", "rank 0: b", "rank 2, 3: c"));
  EXPECT_THAT(mergeTexts({{"b", "b"}}), ElementsAre("b")) << "one rank is all";
  EXPECT_THAT(mergeTexts({{}, {}}), IsEmpty());
}

TEST(Texts, RanksAreListedAsRanges) { EXPECT_EQ(rangesOf({1, 2, 5, 6, 7, 9}), "1, 2, 5-7, 9"); }

} // namespace
} // namespace shardc::launch
