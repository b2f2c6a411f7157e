// The order in which ranks create channels: the verifier follows all roles, and refuses orders in
// which they would wait for each other.
#include <algorithm>

#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/verify/VerifyMembers.h"
#include "test/unit/exec/PipelinePlan.h"

namespace shardc::plan {
namespace {

using verifier::ChannelOrders;

std::vector<Finding> findingsOf(const Plan &plan, const ChannelOrders &orders) {
  verifier::Inspection inspection(plan, 20, kVisitsMax);
  verifier::RoleMembers members(inspection);
  members.find();
  verifier::checkCreation(inspection, members, orders);
  return inspection.take();
}

Plan stages(int count) {
  return test::parsed(
      shardc::test::pipelinePlanText({.stages = count, .microbatches = 3, .steps = 1, .dp = 2}));
}

/// Number of the channels that the role shares with other roles.
size_t countShared(const Plan &plan, const std::vector<ChannelId> &order) {
  verifier::Inspection inspection(plan, 20, kVisitsMax);
  verifier::RoleMembers members(inspection);
  members.find();
  return static_cast<size_t>(std::ranges::count_if(order, [&](ChannelId id) {
    const Channel &channel = plan.channels[static_cast<size_t>(id)];
    return channel.isPair() || members.isShared()[static_cast<size_t>(channel.group)];
  }));
}

TEST(Creation, KeepsToThePlansOrder) {
  for (int count : {1, 2, 3, 4}) {
    Plan plan = stages(count);
    ChannelOrders orders = verifier::channelOrders(plan);
    ASSERT_EQ(orders.size(), plan.roles.size());
    for (const std::vector<ChannelId> &order : orders)
      EXPECT_TRUE(std::ranges::is_sorted(order));
    EXPECT_TRUE(findingsOf(plan, orders).empty()) << count << " stages";
  }
}

TEST(Creation, AMutantOfTheOrderDeadlocks) {
  int mutants = 0;
  for (int count : {2, 3, 4}) {
    Plan plan = stages(count);
    for (size_t role = 0; role < plan.roles.size(); ++role) {
      ChannelOrders orders = verifier::channelOrders(plan);
      if (countShared(plan, orders[role]) < 2)
        continue;
      std::ranges::reverse(orders[role]);
      std::vector<Finding> findings = findingsOf(plan, orders);
      ASSERT_EQ(findings.size(), 1u) << count << " stages, role " << role;
      EXPECT_EQ(findings[0].rule, Rule::Rendezvous);
      EXPECT_NE(findings[0].message.find("deadlocks in the creation of channel"),
                std::string::npos);
      ++mutants;
    }
  }
  EXPECT_GE(mutants, 3);
}

TEST(Creation, AChannelThatAMemberDoesNotCreateDeadlocks) {
  Plan plan = stages(3);
  ChannelOrders orders = verifier::channelOrders(plan);
  auto pair = std::ranges::find_if(
      orders[0], [&](ChannelId id) { return plan.channels[static_cast<size_t>(id)].isPair(); });
  ASSERT_NE(pair, orders[0].end());
  orders[0].erase(pair);
  std::vector<Finding> findings = findingsOf(plan, orders);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].message.find("deadlocks in the creation of channel"), std::string::npos);
}

} // namespace
} // namespace shardc::plan
