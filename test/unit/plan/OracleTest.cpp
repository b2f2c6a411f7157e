// The verifier against the oracle on mutations; `plan-oracle` does the same with more of them.
#include <gtest/gtest.h>

#include "Compare.h"
#include "TestPlans.h"

namespace shardc::plan {
namespace {

constexpr int64_t kMutations = 150;

class Agreement : public testing::TestWithParam<const char *> {};

TEST_P(Agreement, OfVerifierAndOracleOnMutations) {
  oracle::Comparison comparison;
  oracle::compare(test::parsed(test::planText(GetParam())), {.count = kMutations, .seed = 20},
                  comparison);
  for (const std::string &text : comparison.disagreements)
    ADD_FAILURE() << text;
  EXPECT_EQ(comparison.total(), kMutations);
}

INSTANTIATE_TEST_SUITE_P(Plans, Agreement,
                         testing::Values("fsdp", "zero", "ddp", "slots", "roles", "mesh", "every",
                                         "exchange", "parts"));

TEST(Oracle, FindsNothingInPlansThatAreRight) {
  for (const char *name :
       {"fsdp", "zero", "ddp", "slots", "roles", "mesh", "every", "exchange", "parts"})
    EXPECT_EQ(oracle::findBreak(test::parsed(test::planText(name))), "") << name;
}

TEST(Oracle, SeesAMissingWaitAStuckRankAndAWrongOrder) {
  Plan plan = test::parsed(test::planText("slots"));
  plan.roles[0].segments[1].ops[6].waits.clear();
  EXPECT_NE(oracle::findBreak(plan), "");
  plan = test::parsed(test::planText("roles"));
  plan.roles[1].segments[0].ops[3].pred = Pred::Always;
  EXPECT_NE(oracle::findBreak(plan), "");
  plan = test::parsed(test::planText("fsdp"));
  plan.roles[0].segments[1].ops[2].stream = Stream::Copy;
  plan.roles[0].segments[1].ops[7].waits = {2};
  EXPECT_NE(oracle::findBreak(plan).find("meet in different collectives"), std::string::npos);
}

} // namespace
} // namespace shardc::plan
