// Shards inside groups of ranks, and several groups with equal shards: gradients are summed over
// both, and each element counts once in the norm.
#include <gtest/gtest.h>

#include "Sums.h"
#include "TestPlans.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;
using test::replaced;

struct BrokenSum {
  const char *name;
  Rule rule;
  std::vector<test::Edit> edits;
  const char *message; ///< a part of the first finding's message
};
void PrintTo(const BrokenSum &each, std::ostream *out) { *out << each.name; }

constexpr const char *kSum =
    "    %s1 = all_reduce %r1 {block = 1} channel outer unit layers.1 else(0 = %r1) if last : "
    "f32[8] grads at work 416\n";
constexpr const char *kSquares = "%g1 copies 2 :";
constexpr const char *kNorm = "%sums = all_reduce %partial channel misc :";

const BrokenSum kBroken[] = {
    {"sumInsideGroupsOnly",
     Rule::Sum,
     {{kSum, ""}, {"out @g1 = %s1", "out @g1 = %r1"}},
     "it is not summed over 'dp_outer'"},
    {"sumBetweenGroupsOfEachMicrobatch",
     Rule::Sum,
     {{" unit layers.1 else(0 = %r1) if last", " unit layers.1"}},
     "mixes values that are summed over ranks with values that are not"},
    {"sumInsideGroupsAgain",
     Rule::Sum,
     {{"{block = 1} channel outer", "{block = 1} channel reduce"}},
     "counts contributions more than once"},
    {"sumOverAllRanksAgain",
     Rule::Sum,
     {{"channel outer group dp_outer", "channel outer group data"}},
     "counts contributions more than once"},
    {"sumBetweenGroupsTwice",
     Rule::Sum,
     {{kSum,
       "    %s1 = all_reduce %r1 {block = 1} channel outer unit layers.1 else(0 = %r1) if last : "
       "f32[8] grads at work 416\n"
       "    %t1 = all_reduce %s1 {block = 1} channel outer unit layers.1 else(0 = %s1) if last : "
       "f32[8] grads at work 416\n"},
      {"out @g1 = %s1", "out @g1 = %t1"}},
     "counts contributions more than once"},
    {"normOfAllCopies",
     Rule::Step,
     {{kSquares, "%g1 :"}},
     "each rank adds 1 in 1 of its squares to the norm; 2 ranks count the same part of block"},
    {"normOfPartsThatNobodyHas",
     Rule::Step,
     {{kSquares, "%g1 copies 4 :"}},
     "each rank adds 1 in 4 of its squares"},
    {"normOfNothing",
     Rule::Step,
     {{"%ss, %stop :", "%ss, %stop {norm_replicated = true} :"}},
     "sums squares over ranks, and its 'step.pack' leaves them out"},
    {"normOfAnAverage",
     Rule::Step,
     {{kNorm, "%sums = all_reduce %partial {average = true} channel misc :"}},
     "takes an average"},
    {"normOfASumOfSums",
     Rule::Sum,
     {{"channel misc group data", "channel misc group data\nchannel inside group dp"},
      {"    %sums = all_reduce %partial",
       "    %inside = all_reduce %partial channel inside : f64[4] step at work 16\n    %sums = "
       "all_reduce %inside"}},
     "which are not parts of a sum"},
};

class Hybrid : public testing::TestWithParam<BrokenSum> {};

TEST_P(Hybrid, PlansAreRefusedByVerifierAndOracle) {
  Plan plan = parsed(test::edited("hsdp", GetParam().edits));
  test::expectRefused(plan, GetParam().rule, GetParam().message);
  EXPECT_NE(oracle::findSumBreak(plan), "");
}

INSTANTIATE_TEST_SUITE_P(Plans, Hybrid, testing::ValuesIn(kBroken),
                         [](const testing::TestParamInfo<BrokenSum> &info) {
                           return info.param.name;
                         });

/// If all ranks have the gradients, each rank may use its own squares, or the ranks may sum the
/// squares of parts.
TEST(Norms, OfWhatAllRanksHaveAreTheirOwnOrSums) {
  std::string own = planText("ddp");
  std::string sums =
      replaced(own, "%sums, %ss {norm_replicated = true  clip = 1.0}", "%sums, %ss {clip = 1.0}");
  std::vector<Finding> findings = verify(parsed(sums));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(ruleId(findings[0].rule), "plan-step");
  EXPECT_NE(oracle::findSumBreak(parsed(sums)), "");
  // If nobody reads the sum of squares, it may be of any values.
  sums = replaced(sums, "sum_squares %g0, %g1 :", "sum_squares %g0, %g1 copies 2 :");
  for (const std::string &text : {own, sums}) {
    Plan plan = parsed(replaced(text, "%ss, %stop {norm_replicated = true} :", "%ss, %stop :"));
    EXPECT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
    EXPECT_EQ(oracle::findSumBreak(plan), "");
  }
}

/// A shard's squares are not the squares of all elements.
TEST(Norms, OfShardsAreSums) {
  Plan plan = parsed(replaced(planText("hsdp"), "= step.finish %step, %sums, %ss :",
                              "= step.finish %step, %sums, %ss {norm_replicated = true} :"));
  EXPECT_FALSE(verify(plan).empty());
  EXPECT_NE(oracle::findSumBreak(plan), "");
}

/// Copies of an element may be in several roles.
TEST(Norms, CountTheCopiesOfSeveralRoles) {
  Plan plan = parsed(planText("hsdp"));
  Role other = plan.roles[0];
  plan.roles[0].where = {{0, 0, 1}};
  other.where = {{0, 1, 2}};
  other.name = "other";
  plan.roles.push_back(std::move(other));
  test::expectAccepted(plan);
  EXPECT_EQ(oracle::findSumBreak(plan), "");
}

} // namespace
} // namespace shardc::plan
