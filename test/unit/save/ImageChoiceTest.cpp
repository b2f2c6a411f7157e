// The rank that keeps the second copy of a rank's state, and the images from which a restart
// continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/save/ImageChoice.h"

namespace shardc::save {
namespace {

using ::testing::ElementsAre;
using Held = std::vector<std::vector<ImageId>>;

TEST(Neighbours, AreOnTheNextNode) {
  std::vector<RankPlace> ranks = {{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}, {"c", 0}, {"c", 1}};
  EXPECT_THAT(neighboursOf(ranks), ElementsAre(2, 3, 4, 5, 0, 1));
}

TEST(Neighbours, DoNotDependOnTheOrderOfRanks) {
  std::vector<RankPlace> ranks = {{"a", 0}, {"b", 0}, {"a", 1}, {"b", 1}};
  EXPECT_THAT(neighboursOf(ranks), ElementsAre(1, 0, 3, 2));
}

TEST(Neighbours, AreTheNextRankOfOneNode) {
  EXPECT_THAT(neighboursOf(std::vector<RankPlace>{{"a", 0}, {"a", 1}, {"a", 2}}),
              ElementsAre(1, 2, 0));
  EXPECT_THAT(neighboursOf(std::vector<RankPlace>{{"a", 0}}), ElementsAre(-1));
}

TEST(Neighbours, AreOnTheNextNodeOfOneMachine) {
  std::vector<RankPlace> ranks = {{"a", 0}, {"a", 1}, {"a", 0}, {"a", 1}};
  EXPECT_THAT(neighboursOf(ranks), ElementsAre(2, 3, 0, 1));
}

TEST(Neighbours, AreMissingWhereTheNextNodeIsSmaller) {
  std::vector<RankPlace> ranks = {{"a", 0}, {"a", 1}, {"b", 0}};
  EXPECT_THAT(neighboursOf(ranks), ElementsAre(2, -1, 0));
}

TEST(ChooseImages, TakesTheNewestStepOfAllRanks) {
  Held held = {{{0, 0, 6, 2}, {0, 0, 9, 2}}, {{1, 0, 6, 2}, {1, 0, 3, 2}}};
  std::optional<ImageChoice> choice = chooseImages(held, -1);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->step, 6);
  EXPECT_THAT(choice->holders, ElementsAre(0, 1));
}

TEST(ChooseImages, TakesTheCopyOfANeighbourWhereTheOwnerHasNone) {
  Held held = {{{0, 0, 9, 3}, {2, 0, 9, 3}}, {{1, 0, 9, 3}, {0, 0, 9, 3}}, {}};
  std::optional<ImageChoice> choice = chooseImages(held, 6);
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->holders, ElementsAre(0, 1, 0));
}

TEST(ChooseImages, TakesThoseOfMoreAndOfFewerRanks) {
  Held fewer = {{{0, 0, 9, 4}, {2, 0, 9, 4}}, {{1, 0, 9, 4}, {3, 0, 9, 4}}};
  std::optional<ImageChoice> choice = chooseImages(fewer, 6);
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->holders, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(choice->idOf(3), (ImageId{3, 0, 9, 4}));
  Held more = {{{0, 1, 9, 2}}, {{1, 1, 9, 2}}, {}, {}};
  EXPECT_THAT(chooseImages(more, 6)->holders, ElementsAre(0, 1));
  fewer[1].pop_back();
  EXPECT_FALSE(chooseImages(fewer, 6)) << "rank 3's state is lost";
}

TEST(ChooseImages, LeavesWhatIsNotNewerThanTheCheckpoint) {
  Held held = {{{0, 0, 9, 2}}, {{1, 0, 9, 2}}};
  EXPECT_TRUE(chooseImages(held, 8));
  EXPECT_FALSE(chooseImages(held, 9));
}

TEST(ChooseImages, NeverMixesAttempts) {
  Held held = {{{0, 0, 9, 2}}, {{1, 1, 9, 2}}};
  EXPECT_FALSE(chooseImages(held, -1));
  held[0].push_back({0, 1, 9, 2});
  EXPECT_EQ(chooseImages(held, -1)->attempt, 1);
}

TEST(ChooseImages, IgnoresRanksThatAreNone) {
  Held held = {
      {{0, 0, 9, 1}, {7, 0, 9, 1}, {-1, 0, 12, 1}, {0, 0, 15, 0}, {0, 0, 15, int64_t{1} << 40}}};
  EXPECT_EQ(chooseImages(held, -1)->step, 9);
}

} // namespace
} // namespace shardc::save
