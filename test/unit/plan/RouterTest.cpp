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
    testing::Values(
        WrongLoad{"lossOfOneSlice",
                  {{"%losses = router_loss %logits, %of", "%losses = router_loss %logits, %own"}},
                  Rule::Sum,
                  "'router_loss' takes '%own', which may differ between ranks along 'cp'; it needs "
                  "the load of all ranks with the same samples"},
        WrongLoad{"gradientOfOneSlice",
                  {{"router_loss_bwd %logits, %of", "router_loss_bwd %logits, %own"}},
                  Rule::Sum,
                  "'router_loss_bwd' takes '%own', which may differ between ranks along 'cp'"},
        WrongLoad{
            "biasOfOneRank",
            {{"    %load.all = all_reduce %load channel all : f32[1,6] step at state 768\n", ""},
             {"update %bias, %load.all", "update %bias, %load"},
             {"out @load = %load.all", "out @load = %load"}},
            Rule::Sum,
            "'expert_bias.update' takes '%load', which may differ between ranks along 'dp'"},
        WrongLoad{
            "biasOfSomeRanks",
            {{"all_reduce %load channel all", "all_reduce %load channel cp"}},
            Rule::Sum,
            "'expert_bias.update' takes '%load.all', which may differ between ranks along 'dp'"},
        WrongLoad{"biasOfNoLoad",
                  {{"    %load.all = all_reduce",
                    "    %none = fill : f32[1,6] step at work 768\n    %load.all = all_reduce"},
                   {"update %bias, %load.all", "update %bias, %none"}},
                  Rule::Sum,
                  "'expert_bias.update' takes '%none' as the load of a step; it"},
        WrongLoad{"loadOfOneMicrobatch",
                  {{" acc(0 = %load.before if not_first)", ""}},
                  Rule::Lost,
                  "segment 'micro' leaves '%sums' in cell '@load', which is overwritten"},
        WrongLoad{"partsThatDoNotDivide",
                  {{"%own = expert_load %ids : f32[1,6]", "%own = expert_load %ids : f32[3,6]"}},
                  Rule::Shape,
                  "'expert_load' needs rows that consist of equal parts"},
        WrongLoad{"noSlot",
                  {{"tally %own {slots = 1}", "tally %own {slots = 1 slot = 1}"}},
                  Rule::Shape,
                  "'tally' needs a slot among its slots"}),
    [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::plan
