// How supervisors decide on restarts, event by event.
#include <gtest/gtest.h>

#include "runtime/launch/Restarts.h"

namespace shardc::launch {
namespace {

using Verdict = RestartLeader::Verdict;
using State = RestartLeader::State;

FaultSeen faultAt(int64_t step, const char *id = "rank-ended") { return {id, step, false}; }

TEST(RestartLeader, StartsAgainAfterAPause) {
  RestartLeader leader(3);
  EXPECT_EQ(leader.faulted(faultAt(7)), Verdict::Again);
  EXPECT_EQ(leader.state(), State::Ends);
  EXPECT_FALSE(leader.startsNow(1e9)); // not before all ranks have ended
  Attempt next = leader.ended(/*now=*/10, /*newestSave=*/6);
  EXPECT_EQ(next.number, 1);
  EXPECT_EQ(next.savedStep, 6);
  EXPECT_FALSE(leader.startsNow(10 + next.pause / 2));
  EXPECT_TRUE(leader.startsNow(10 + next.pause));
  EXPECT_FALSE(leader.startsNow(10 + next.pause)) << "it starts twice";
  EXPECT_EQ(leader.state(), State::Runs);
}

TEST(RestartLeader, EndsWhereNoRestartIsAskedFor) {
  RestartLeader leader(0);
  EXPECT_EQ(leader.faulted(faultAt(7)), Verdict::NoRestarts);
  EXPECT_EQ(leader.state(), State::Over);
}

TEST(RestartLeader, EndsOnceAllAreUsed) {
  RestartLeader leader(2);
  for (int64_t step : {3, 5}) {
    EXPECT_EQ(leader.faulted(faultAt(step)), Verdict::Again);
    leader.ended(0, step);
    EXPECT_TRUE(leader.startsNow(100));
  }
  EXPECT_EQ(leader.faulted(faultAt(7)), Verdict::UsedUp);
  EXPECT_EQ(leader.state(), State::Over);
}

TEST(RestartLeader, EndsWhereTheFaultComesBack) {
  for (auto [step, id, verdict] : {std::tuple(4, "not-finite", Verdict::CameBack),
                                   {5, "not-finite", Verdict::Again},
                                   {4, "rank-ended", Verdict::Again}}) {
    RestartLeader leader(9);
    EXPECT_EQ(leader.faulted(faultAt(4, "not-finite")), Verdict::Again);
    leader.ended(0, 3);
    EXPECT_TRUE(leader.startsNow(100));
    EXPECT_EQ(leader.faulted(faultAt(step, id)), verdict) << step << " " << id;
  }
}

TEST(RestartLeader, DoesNotMendWrongInput) {
  RestartLeader leader(3);
  EXPECT_EQ(leader.faulted({"ranks-missing", 0, /*isFinal=*/true}), Verdict::Final);
}

TEST(RestartLeader, ObeysARequestToEnd) {
  RestartLeader early(3), late(3);
  early.asked();
  EXPECT_EQ(early.faulted(faultAt(2)), Verdict::Asked);
  EXPECT_EQ(late.faulted(faultAt(2)), Verdict::Again);
  late.ended(0, -1);
  late.asked();
  EXPECT_FALSE(late.startsNow(1e9));
}

TEST(RestartLeader, WaitsLongerUntilASaveIsMade) {
  RestartLeader leader(20);
  auto pauseAfter = [&](int64_t step, int64_t saved) {
    EXPECT_EQ(leader.faulted(faultAt(step)), Verdict::Again);
    double pause = leader.ended(0, saved).pause;
    EXPECT_TRUE(leader.startsNow(pause));
    return pause;
  };
  double expected = 1;
  for (int64_t step = 1; step < 9; ++step) {
    EXPECT_EQ(pauseAfter(step, -1), expected);
    expected = std::min(2 * expected, 60.0);
  }
  EXPECT_EQ(pauseAfter(20, 18), 1) << "a save was made";
  EXPECT_EQ(pauseAfter(21, 18), 2);
}

TEST(RestartLeader, ResizesWithoutAPauseAndWithoutCountingIt) {
  RestartLeader leader(1);
  ASSERT_TRUE(leader.resizes());
  EXPECT_FALSE(leader.resizes()) << "its ranks are ending";
  EXPECT_TRUE(leader.isInOrder());
  Attempt next = leader.ended(/*now=*/10, /*newestSave=*/8);
  EXPECT_EQ(next.number, 1);
  EXPECT_EQ(next.restarts, 0);
  EXPECT_EQ(next.savedStep, 8);
  EXPECT_TRUE(leader.startsNow(10));
  EXPECT_EQ(leader.faulted(faultAt(9)), Verdict::Again) << "the restart was not used";
  EXPECT_FALSE(leader.isInOrder());
  EXPECT_EQ(leader.ended(11, 8).restarts, 1);
  EXPECT_TRUE(leader.startsNow(12));
  leader.asked();
  EXPECT_FALSE(leader.resizes());
}

TEST(RestartLeader, GoesOnWhereWhatTheFaultIsDueToIsLeftOut) {
  RestartLeader leader(5);
  EXPECT_EQ(leader.faulted(faultAt(2)), Verdict::Again);
  leader.ended(0, -1);
  ASSERT_TRUE(leader.startsNow(1));
  FaultSeen again = faultAt(2);
  again.isMended = true;
  EXPECT_EQ(leader.faulted(again), Verdict::Again);
  leader.ended(1, -1);
  ASSERT_TRUE(leader.startsNow(10));
  EXPECT_EQ(leader.faulted(faultAt(2)), Verdict::CameBack) << "it was not due to that";
}

TEST(RestartFollower, StartsItsRankUntilTheJobIsOver) {
  RestartFollower follower(true);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(follower.rankEnded({.wasToldOver = false, .hasHeard = true}, i));
    EXPECT_FALSE(follower.startsNow(i));
    EXPECT_TRUE(follower.startsNow(i + 1));
  }
  EXPECT_FALSE(follower.rankEnded({.wasToldOver = true, .hasHeard = true}, 100));
  EXPECT_FALSE(follower.isPausing());
}

TEST(RestartFollower, EndsWhereItsRankFailsByItself) {
  RestartFollower follower(true);
  int starts = 0;
  while (follower.rankEnded({}, starts) && follower.startsNow(starts + 1))
    ASSERT_LT(++starts, 10);
  EXPECT_EQ(starts, 3);
}

TEST(RestartFollower, EndsWhereNoRestartIsAskedForOrTheJobIsToEnd) {
  RestartFollower without(false), asked(true);
  EXPECT_FALSE(without.rankEnded({.wasToldOver = false, .hasHeard = true}, 0));
  asked.asked();
  EXPECT_FALSE(asked.rankEnded({.wasToldOver = false, .hasHeard = true}, 0));
}

} // namespace
} // namespace shardc::launch
