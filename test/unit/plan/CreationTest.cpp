// The order in which ranks create channels is the plan's, so they can wait for each other only if a
// member does not create a channel.
#include <algorithm>

#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Coordinates.h"
#include "test/unit/exec/PipelinePlan.h"

namespace shardc::plan {
namespace {

TEST(Creation, KeepsToThePlansOrder) {
  for (int count : {1, 2, 3, 4}) {
    Plan plan = test::parsed(
        shardc::test::pipelinePlanText({.stages = count, .microbatches = 3, .steps = 1, .dp = 2}));
    for (uint32_t role = 0; role < plan.roles.size(); ++role)
      EXPECT_TRUE(std::ranges::is_sorted(channelOrder(plan, {&role, 1})));
    test::expectAccepted(plan);
  }
}

TEST(Creation, AChannelThatAMemberDoesNotCreateDeadlocks) {
  Plan plan = test::parsed(test::planText("roles"));
  Segment unused = plan.roles[0].segments[0]; // the program does not run it
  unused.name = "unused";
  auto op = std::ranges::find_if(unused.ops.rbegin(), unused.ops.rend(),
                                 [](const Op &each) { return each.channel >= 0; });
  ASSERT_NE(op, unused.ops.rend());
  plan.channels.push_back(plan.channels[static_cast<size_t>(op->channel)]);
  plan.channels.back().name = "other";
  op->channel = static_cast<ChannelId>(plan.channels.size() - 1);
  plan.roles[0].segments.push_back(std::move(unused));
  test::expectRefused(plan, Rule::Rendezvous,
                      "role 'head' deadlocks in the creation of channel 'other': role 'tail' does "
                      "not create it");
}

} // namespace
} // namespace shardc::plan
