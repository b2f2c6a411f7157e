// The load of experts: losses of rows need the load of all rows of their samples, and biases the
// load of a whole step on all ranks.
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::edited;
using test::parsed;
using test::planText;

TEST(Router, LoadsOfAllRanksAndMicrobatchesAreAccepted) {
  Plan plan = parsed(planText("router"));
  test::expectAccepted(plan);
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
}

struct WrongLoad {
  const char *name;
  std::vector<test::Edit> edits;
  Rule rule;
  const char *message;
};
void PrintTo(const WrongLoad &each, std::ostream *out) { *out << each.name; }

class RoutedPlan : public testing::TestWithParam<WrongLoad> {};

TEST_P(RoutedPlan, WithAnotherLoadIsRefused) {
  const WrongLoad &wrong = GetParam();
  test::expectRefused(parsed(edited("router", wrong.edits)), wrong.rule, wrong.message);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, RoutedPlan,
    testing::Values(WrongLoad{"partsThatDoNotDivide",
                              {{"%own = expert_load %ids : f32[1,6]",
                                "%own = expert_load %ids : f32[3,6]"}},
                              Rule::Shape,
                              "'expert_load' needs rows that consist of equal parts"},
                    WrongLoad{"noSlot",
                              {{"tally %own {slots = 1}", "tally %own {slots = 1 slot = 1}"}},
                              Rule::Shape,
                              "'tally' needs a slot among its slots"}),
    [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::plan
