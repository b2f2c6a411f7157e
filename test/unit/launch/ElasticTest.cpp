// How rank 0's supervisor decides on the size of an elastic job, event by event.
#include <gtest/gtest.h>

#include "runtime/launch/Elastic.h"

namespace shardc::launch {
namespace {

constexpr double kElasticWait = 100;

/// A job of size 4, 3 or 2, on machines with two places.
class ElasticLeaderTest : public ::testing::Test {
protected:
  explicit ElasticLeaderTest(int64_t spares = 0)
      : leader({.sizes = {4, 3, 2}, .spares = spares, .waitSeconds = kElasticWait}) {
    leader.open(0, -1, /*isInOrder=*/false);
  }
  void come(std::initializer_list<int64_t> places) {
    for (int64_t place : places)
      leader.came(place, "machine " + std::to_string(place / 2));
  }
  /// Begins the next attempt, which loads this save.
  void again(double now, int64_t savedStep, bool isInOrder = false) {
    leader.open(now, savedStep, isInOrder);
  }

  ElasticLeader leader;
};

class ElasticWithSpares : public ElasticLeaderTest {
protected:
  ElasticWithSpares() : ElasticLeaderTest(2) {}
};

TEST_F(ElasticLeaderTest, BeginsAtOnceWhereAllAreThere) {
  come({0, 1, 3});
  EXPECT_FALSE(leader.begin(1));
  come({2});
  EXPECT_EQ(leader.begin(1), Crew({0, 1, 2, 3}));
  EXPECT_FALSE(leader.begin(2)) << "it has begun";
  EXPECT_EQ(leader.growsTo(), 0);
}

TEST_F(ElasticLeaderTest, TakesTheLargestSizeWhereSomeDoNotComeInTime) {
  come({0, 1, 3});
  EXPECT_FALSE(leader.begin(kElasticWait - 1));
  EXPECT_EQ(leader.begin(kElasticWait), Crew({0, 1, 3}));
}

TEST_F(ElasticLeaderTest, IsHopelessWithoutTheSmallestSizeOrTheFirstPlace) {
  come({0});
  EXPECT_FALSE(leader.isHopeless(kElasticWait - 1));
  EXPECT_TRUE(leader.isHopeless(kElasticWait));
  EXPECT_FALSE(leader.begin(kElasticWait));
  leader.left(0);
  come({1, 2, 3});
  EXPECT_FALSE(leader.begin(kElasticWait));
  EXPECT_TRUE(leader.isHopeless(kElasticWait));
  come({0});
  EXPECT_FALSE(leader.isHopeless(kElasticWait));
  EXPECT_TRUE(leader.begin(kElasticWait));
}

TEST_F(ElasticLeaderTest, DoesNotCountWhoHasLeft) {
  come({0, 1, 2, 3});
  leader.left(1);
  leader.left(2);
  EXPECT_FALSE(leader.begin(1));
  EXPECT_EQ(leader.begin(kElasticWait), Crew({0, 3}));
}

TEST_F(ElasticLeaderTest, GrowsWithThoseThatWait) {
  come({0, 1});
  EXPECT_EQ(leader.begin(kElasticWait), Crew({0, 1}));
  come({3});
  EXPECT_EQ(leader.growsTo(), 3);
  come({2});
  EXPECT_EQ(leader.growsTo(), 4);
  leader.left(2);
  EXPECT_EQ(leader.growsTo(), 3);
  again(200, 8, /*isInOrder=*/true);
  come({0, 1});
  EXPECT_FALSE(leader.begin(201));
  come({3});
  EXPECT_EQ(leader.begin(201), Crew({0, 1, 3})) << "nobody else is expected";
}

TEST_F(ElasticLeaderTest, ExpectsAsManyAsThereWereAfterAFault) {
  come({0, 1});
  ASSERT_TRUE(leader.begin(kElasticWait));
  again(200, 4);
  come({0});
  EXPECT_FALSE(leader.begin(201));
  come({1});
  EXPECT_EQ(leader.begin(201), Crew({0, 1}));
}

TEST_F(ElasticLeaderTest, DoesNotGrowAgainWhereASaveFailed) {
  come({0, 1});
  ASSERT_TRUE(leader.begin(kElasticWait));
  come({2, 3});
  EXPECT_EQ(leader.growsTo(), 4);
  again(200, -1, /*isInOrder=*/true);
  come({0, 1, 2});
  ASSERT_EQ(leader.begin(200 + kElasticWait)->size(), 3u);
  come({3});
  EXPECT_EQ(leader.growsTo(), 0);
  again(400, 8);
  come({0, 1, 2});
  ASSERT_EQ(leader.begin(400 + kElasticWait)->size(), 3u);
  come({3});
  EXPECT_EQ(leader.growsTo(), 4) << "a save was made since";
}

TEST_F(ElasticWithSpares, TakesSparesAfterAShortWait) {
  come({0, 1, 4, 5});
  EXPECT_FALSE(leader.begin(10)) << "others are expected";
  EXPECT_EQ(leader.begin(12), Crew({0, 1, 4, 5}));
}

TEST_F(ElasticWithSpares, BeginsWithoutSpares) {
  come({0, 1, 2, 3});
  EXPECT_EQ(leader.begin(0), Crew({0, 1, 2, 3}));
  come({4, 5});
  EXPECT_EQ(leader.growsTo(), 0);
}

TEST_F(ElasticWithSpares, PrefersWholeMachines) {
  come({0, 1, 2, 4, 5});
  EXPECT_FALSE(leader.begin(1));
  EXPECT_EQ(leader.begin(3), Crew({0, 1, 4, 5}));
}

TEST_F(ElasticWithSpares, KeepsTheFirstPlaceOnAMachineThatLacksOne) {
  come({0, 2, 3, 4, 5});
  EXPECT_FALSE(leader.begin(1));
  EXPECT_EQ(leader.begin(3), Crew({0, 2, 3, 4}));
}

TEST_F(ElasticWithSpares, LeavesOutAPlaceThatFailsTwice) {
  come({0, 1, 2, 3});
  ASSERT_TRUE(leader.begin(0));
  EXPECT_FALSE(leader.accuse(2, 4));
  again(10, 4);
  come({0, 1, 2, 3, 4});
  ASSERT_EQ(leader.begin(10), Crew({0, 1, 2, 3}));
  EXPECT_TRUE(leader.accuse(2, 4));
  EXPECT_TRUE(leader.isLeftOut(2));
  again(20, 4);
  come({0, 1, 2, 3, 4});
  EXPECT_EQ(leader.begin(20), Crew({0, 1, 3, 4})) << "all that are expected are there";
  EXPECT_FALSE(leader.accuse(2, 4)) << "another place";
  EXPECT_EQ(leader.growsTo(), 0);
}

TEST_F(ElasticLeaderTest, KeepsAPlaceThatSavesInBetweenOrCannotBeSpared) {
  come({0, 1, 2, 3});
  ASSERT_TRUE(leader.begin(0));
  EXPECT_FALSE(leader.accuse(2, 4));
  EXPECT_FALSE(leader.accuse(2, 8)) << "a save was made";
  EXPECT_FALSE(leader.accuse(3, 8)) << "another place";
  EXPECT_FALSE(leader.accuse(0, 8));
  EXPECT_FALSE(leader.accuse(0, 8)) << "rank 0 stays where the supervisor is";
  EXPECT_FALSE(leader.accuse(9, 8)) << "no rank";
  again(10, 8);
  come({0, 1});
  ASSERT_EQ(leader.begin(10 + kElasticWait)->size(), 2u);
  EXPECT_FALSE(leader.accuse(1, 8));
  EXPECT_FALSE(leader.accuse(1, 8)) << "too few would be left";
}

} // namespace
} // namespace shardc::launch
