// Master weights in two cells, and what checkpoints hold of them.
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/HostCells.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

constexpr const char *kPlan = "remainders";

TEST(Remainders, AreHeldByCheckpointsWithTheirWeights) {
  Plan plan = parsed(planText(kPlan));
  test::expectAccepted(plan);
  const Role &role = plan.roles[0];
  uint32_t lower = test::cellNamed(plan, "master.layers.0"), upper = test::cellNamed(plan, "ws");
  EXPECT_EQ(upperHalfOf(role, lower), upper);
  EXPECT_EQ(upperHalfOf(role, upper), kNone);
  std::vector<bool> isSaved = cellsOfState(role, savedBlocks(plan, role));
  EXPECT_TRUE(isSaved[lower] && isSaved[upper]);
  EXPECT_FALSE(isSaved[test::cellNamed(plan, "w")]);
}

} // namespace
} // namespace shardc::plan
