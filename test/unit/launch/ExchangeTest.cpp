// Exchanges of groups of ranks: who receives which parts, and ranks that wait for each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/launch/Exchange.h"

namespace shardc::launch {
namespace {

using ::testing::ElementsAre;
using Fold = hal::Peers::Fold;

GatherPart part(const std::string &key, std::vector<int> members, const std::string &bytes,
                Fold fold = Fold::Parts) {
  return {key, fold, std::move(members), bytes};
}

std::vector<std::string> textsOf(const std::string &bytes) {
  std::vector<std::string> texts;
  Unpacker in(bytes);
  while (!in.isComplete() && !in.hasFailed())
    texts.push_back(in.text());
  return texts;
}

TEST(Exchange, MembersComeBackAsTheyWent) {
  for (std::vector<int> members : {std::vector<int>{},
                                   {0},
                                   {3, 1},
                                   {0, 1, 2, 3},
                                   {0, 4, 8, 1, 5, 9},
                                   {9, 8, 7},
                                   {0, 2, 3, 9}}) {
    auto read = unpacked<GatherPart>(packed(part("k", members, "b", Fold::First)), 10);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->members, members);
    EXPECT_EQ(read->key, "k");
    EXPECT_EQ(read->bytes, "b");
    EXPECT_EQ(read->fold, Fold::First);
  }
}

TEST(Exchange, RefusesMembersThatCannotBe) {
  EXPECT_FALSE(unpacked<GatherPart>(packed(part("k", {0, 10}, "")), 10));
  EXPECT_FALSE(unpacked<GatherPart>(packed(part("k", {0, 1, 0}, "")), 10));
  EXPECT_FALSE(
      unpacked<GatherPart>(packed(part("k", {0, 1}, std::string(kBlobBytesMax + 1, 'x'))), 10));
  EXPECT_FALSE(unpacked<GatherPart>(packed(part("k", {0, 1}, "x")) + "x", 10));
  Exchange exchange(4);
  EXPECT_FALSE(exchange.add(0, part("k", {1, 2}, ""), 1)) << "it is no member";
  EXPECT_TRUE(exchange.add(1, part("k", {1, 2}, ""), 1));
  EXPECT_FALSE(exchange.add(1, part("other", {1, 3}, ""), 1)) << "it is in one already";
}

/// A group's exchange can end while others are pending, in any order, and returns the parts in the
/// order of its members.
TEST(Exchange, GroupsDoNotWaitForEachOther) {
  Exchange exchange(4);
  ASSERT_TRUE(exchange.add(0, part("id", {0, 1}, "a"), 1));
  ASSERT_TRUE(exchange.add(3, part("id", {3, 2}, "d"), 2));
  EXPECT_FALSE(exchange.take(3));
  ASSERT_TRUE(exchange.add(2, part("id", {3, 2}, "c"), 3));
  auto done = exchange.take(2);
  ASSERT_TRUE(done);
  EXPECT_THAT(done->members, ElementsAre(3, 2));
  EXPECT_THAT(textsOf(done->body), ElementsAre("d", "c"));
  EXPECT_TRUE(exchange.isInside(0));
  EXPECT_FALSE(exchange.isInside(3));
  ASSERT_TRUE(exchange.add(1, part("id", {0, 1}, "b"), 4));
  EXPECT_THAT(textsOf(exchange.take(1)->body), ElementsAre("a", "b"));
}

TEST(Exchange, GivesTheFirstPartThatIsNotEmpty) {
  Exchange exchange(3);
  for (auto [rank, bytes] : {std::pair(2, "c"), {0, ""}, {1, "b"}})
    ASSERT_TRUE(exchange.add(rank, part("vote", {}, bytes, Fold::First), 1));
  EXPECT_THAT(textsOf(exchange.take(1)->body), ElementsAre("b"));
  for (int rank : {0, 1, 2})
    ASSERT_TRUE(exchange.add(rank, part("vote", {}, "", Fold::First), 1));
  EXPECT_THAT(textsOf(exchange.take(1)->body), ElementsAre(""));
}

TEST(Exchange, FindsRanksThatWaitForEachOther) {
  Exchange exchange(6);
  ASSERT_TRUE(exchange.add(0, part("a", {0, 1}, ""), 1));
  EXPECT_FALSE(exchange.findOther(0));
  ASSERT_TRUE(exchange.add(1, part("b", {1, 2}, ""), 1));
  EXPECT_FALSE(exchange.findOther(1)) << "rank 2 may come, then rank 1 to the other one";
  ASSERT_TRUE(exchange.add(2, part("c", {2, 0}, ""), 1));
  EXPECT_EQ(exchange.findOther(2), 0) << "by way of rank 1";
  ASSERT_TRUE(exchange.add(4, part("x", {4, 5}, ""), 1));
  ASSERT_TRUE(exchange.add(5, part("x", {5, 4}, ""), 1));
  EXPECT_EQ(exchange.findOther(5), 4) << "of the same name, with other members";
}

/// Names the rank for which the others wait. It is not the rank that has waited longest.
TEST(Exchange, SaysWhatHoldsUpTheLongestWait) {
  Exchange exchange(5);
  EXPECT_FALSE(exchange.longestWait());
  ASSERT_TRUE(exchange.add(0, part("a", {0, 1}, ""), 5));
  ASSERT_TRUE(exchange.add(2, part("other", {2, 3}, ""), 6));
  auto wait = exchange.longestWait();
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->rank, 0);
  EXPECT_THAT(wait->missing, ElementsAre(1));
  ASSERT_TRUE(exchange.add(1, part("b", {1, 4}, ""), 7));
  wait = exchange.longestWait();
  EXPECT_EQ(wait->rank, 1);
  EXPECT_EQ(wait->name, "b");
  EXPECT_EQ(wait->since, 5);
  EXPECT_THAT(wait->missing, ElementsAre(4));
}

} // namespace
} // namespace shardc::launch
