// The ops that must have ended when an op starts.
#include "compiler/passes/Clocks.h"

#include <gtest/gtest.h>

#include "runtime/plan/Text.h"

namespace shardc::passes {
namespace {

plan::Plan parsed(std::string_view ops) {
  Result<plan::Plan> plan =
      plan::parse("shardc.plan 2 scheduled \"t\"\nmesh { dp = 2 }\ngroups { dp = [dp] } data dp\n"
                  "stream gather\nstream reduce\nstream copy\nrole all \"\" {\n segment s {\n" +
                      std::string(ops) + " }\n}\n",
                  "t");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  return *plan;
}

/// A clock with these values for the first streams; no op of the others has ended.
Clock clock(std::initializer_list<int32_t> first) {
  Clock clock = kClockZero;
  std::ranges::copy(first, clock.begin());
  return clock;
}

TEST(Clocks, OpsOfOneStreamFollowEachOther) {
  plan::Plan plan = parsed("%a = fill : f32[4] activations\n%b = gelu %a : f32[4] activations\n");
  std::vector<Clock> start = clocksAtStart(plan.roles[0].segments[0]);
  EXPECT_EQ(start[0], kClockZero);
  EXPECT_EQ(start[1], clock({0}));
}

TEST(Clocks, AWaitBringsWhatTheOtherStreamKnew) {
  plan::Plan plan = parsed("%a = fill : f32[4] activations\n"
                           "%b = gelu %a on gather after %a : f32[4] activations\n"
                           "%c = gelu %b on reduce after %b : f32[4] activations\n"
                           "%d = fill on copy : f32[4] activations\n");
  std::vector<Clock> start = clocksAtStart(plan.roles[0].segments[0]);
  EXPECT_EQ(start[1], clock({0}));
  EXPECT_EQ(start[2], clock({0, 1})) << "the first op has ended too, by way of the second";
  EXPECT_EQ(start[3], kClockZero) << "nothing orders an op without waits on a stream of its own";
}

TEST(Clocks, AliasOpsRunNothing) {
  plan::Plan plan = parsed("%a = fill : f32[4] activations\n"
                           "%v = view %a : f32[2] activations\n"
                           "%b = gelu %v : f32[2] activations\n");
  std::vector<Clock> start = clocksAtStart(plan.roles[0].segments[0]);
  EXPECT_EQ(start[2], clock({0}));
}

TEST(Clocks, AliasesAreDefinedByWhatTheyName) {
  plan::Plan plan = parsed("%a = fill : f32[4] activations\n"
                           "%b = fill on gather : f32[4] activations\n"
                           "%p = pack %a, %b {block = 0} : f32[8] activations\n"
                           "%v = view %p : f32[2] activations\n");
  std::vector<Clock> defs = definingOps(plan.roles[0].segments[0]);
  EXPECT_EQ(defs[2], clock({0, 1}));
  EXPECT_EQ(defs[3], defs[2]);
}

TEST(Clocks, CoversAndJoinCompareStreamByStream) {
  Clock a = {3, -1, 2, -1}, b = {1, 4, 2, -1};
  EXPECT_FALSE(covers(a, b));
  EXPECT_FALSE(covers(b, a));
  Clock both = a;
  join(both, b);
  EXPECT_EQ(both, (Clock{3, 4, 2, -1}));
  EXPECT_TRUE(covers(both, a) && covers(both, b));
}

} // namespace
} // namespace shardc::passes
