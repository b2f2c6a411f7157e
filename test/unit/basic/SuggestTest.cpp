#include "compiler/basic/Suggest.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(editDistance("lr", "lr", 4), 0u);
  EXPECT_EQ(editDistance("seq_lenght", "seq_length", 4), 1u); // a swap is one edit
  EXPECT_EQ(editDistance("num_layer", "num_layers", 4), 1u);
  EXPECT_EQ(editDistance("kitten", "sitting", 4), 3u);
  EXPECT_EQ(editDistance("", "abc", 4), 3u);
}

TEST(EditDistance, TakesCaseAndDashesAsEqual) {
  EXPECT_EQ(editDistance("Micro-Batch", "micro_batch", 4), 0u);
}

TEST(EditDistance, StopsAtItsMaximum) {
  EXPECT_EQ(editDistance("abcdefgh", "stuvwxyz", 2), 3u);
  EXPECT_EQ(editDistance("a", "abcdefgh", 2), 3u);
}

TEST(Suggest, IsSureOfOneNearName) {
  Suggestion one = suggest("hiden_size", {"hidden_size", "seq_length"});
  ASSERT_TRUE(one.isSure());
  EXPECT_EQ(*one.theOne(), "hidden_size");
  EXPECT_EQ(one.distance, 1u);
}

TEST(Suggest, IsNotSureOfSeveral) {
  Suggestion both = suggest("data_x", {"data_a", "data_b", "data_a"});
  EXPECT_EQ(both.names, (std::vector<llvm::StringRef>{"data_a", "data_b"}));
  EXPECT_FALSE(both.isSure());
  EXPECT_FALSE(both.theOne().has_value());
}

TEST(Suggest, FindsNothingFarAway) {
  EXPECT_TRUE(suggest("xyz", {"hidden_size"}).names.empty());
  EXPECT_TRUE(suggest("lr", {}).names.empty());
}

TEST(Suggest, NeedsShortNamesToBeNearer) {
  EXPECT_FALSE(suggest("abcd", {"abxy"}).isSure());
  EXPECT_TRUE(suggest("abcd", {"abcx"}).isSure());
}

TEST(QuotedList, EndsLongListsWithACount) {
  EXPECT_EQ(quotedList({"a", "b"}), "'a', 'b'");
  EXPECT_EQ(quotedList({"a", "b", "c"}, 2), "'a', 'b', ... (1 more)");
  EXPECT_EQ(quotedList({}), "");
}

} // namespace
} // namespace shardc
