// The load of experts in a plan.
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;

TEST(Router, LoadsOfAllRanksAndMicrobatchesAreAccepted) {
  Plan plan = parsed(planText("router"));
  test::expectAccepted(plan);
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
}

} // namespace
} // namespace shardc::plan
