// Sizes of elastic jobs, as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/ElasticSizes.h"

namespace shardc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ElasticSizes, AreNumbersWithCommasLargestFirst) {
  EXPECT_THAT(*parseElasticSizes("8"), ElementsAre(8));
  EXPECT_THAT(*parseElasticSizes("64,56,48"), ElementsAre(64, 56, 48));
  EXPECT_EQ(elasticText({64, 56, 48}), "64,56,48");
  for (const char *text : {"", ",", "8,", ",8", "8,,4", "8 4", "8, 4", "4,8", "8,8", "8,0", "-8",
                           "8x", "8.5", "99999999999999999999", "2000000"})
    EXPECT_THAT(parseElasticSizes(text).status().message(), HasSubstr("largest first, as 8,6,4"))
        << text;
}

} // namespace
} // namespace shardc
