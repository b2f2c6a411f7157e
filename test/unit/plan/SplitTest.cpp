// Parameters that ranks have parts or copies of: text, form, sums of gradients, norms and saves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "Oracle.h"
#include "TestPlans.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::edited;
using test::parsed;
using test::parseError;
using test::planText;
using ::testing::HasSubstr;

/// A plan with these parameters, one data axis, and axes for tensors and experts.
std::string tables(std::string_view params, std::string_view blocks = "numel 256 shard 128 over dp",
                   std::string_view rest = "") {
  return fmt::format(
      "shardc.plan 2 logical \"t\"\nmesh {{ dp = 2 ep = 2 etp = 2 tp = 2 one = 1 }}\n"
      "groups {{ dp = [dp] ep = [ep] etp = [etp] tp = [tp] one = [one] "
      "all = [dp, ep, etp, tp] }}\nblock b {}\n{}{}role all \"w\" {{ program {{ }} }}\n",
      blocks, params, rest);
}

TEST(Splits, ComeBackAsText) {
  std::string experts =
      "param \"fc1.weight\" : f32[2,4,16] stacked row 16 of [4,8,16] split 0 over "
      "ep split 1 over etp parts 2 copies [tp] block b at 0 init normal 0.02\n";
  std::string columns =
      "param \"down\" : f32[4,4] of [4,8] split 1 over tp block b at 128 init ones\n";
  Plan plan = parsed(tables(experts + columns));
  EXPECT_THAT(print(plan), HasSubstr(experts + columns));
  EXPECT_EQ(print(parsed(print(plan))), print(plan));
  const Param &stack = plan.params[0];
  EXPECT_EQ(stack.rowSize(), 16);
  EXPECT_EQ(stack.wholeType(), Type::of(DType::F32, {4, 8, 16}));
  EXPECT_EQ(stack.tensorName(3), "fc1.weight3");
  EXPECT_EQ(plan.params[1].tensorName(0), "down");
  EXPECT_EQ(plan.params[1].rowSize(), 4);
  test::expectAccepted(plan);
}

TEST(Splits, MayStillBeToBeMadeInLogicalPlans) {
  std::string uncut =
      "param \"up\" : f32[8,4] split 0 over tp parts 2 block b at 0 init normal 0.02\n";
  Plan plan = parsed(tables(uncut));
  EXPECT_THAT(print(plan), HasSubstr(uncut));
  EXPECT_TRUE(plan.params[0].isUncut());
  EXPECT_EQ(plan.params[0].wholeType(), Type::of(DType::F32, {8, 4}));
  test::expectAccepted(plan);
  plan.level = Level::Sharded;
  test::expectRefused(plan, Rule::Split,
                      "only logical plans have parameters that are still to be cut");
}

struct BadText {
  const char *name, *param, *message;
};
void PrintTo(const BadText &each, std::ostream *out) { *out << each.name; }

class BadSplits : public testing::TestWithParam<BadText> {};

TEST_P(BadSplits, AreRefusedAsText) {
  EXPECT_THAT(
      parseError(tables(fmt::format("param \"p\" : f32[4,4] {} init zeros\n", GetParam().param))),
      HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadSplits,
    testing::Values(BadText{"wholeWithoutSplits", "of [8,4]", "expected 'split'"},
                    BadText{"unknownGroup", "of [8,4] split 0 over cp",
                            "unknown group 'cp' [plan-name]"},
                    BadText{"dimensionBeyondTheType", "of [8,4] split 2 over tp", "[plan-limit]"},
                    BadText{"noParts", "of [8,4] split 0 over tp parts 0", "[plan-limit]"},
                    BadText{"moreSplitsThanDimensions",
                            "of [8,4] split 0 over tp split 1 over ep split 0 over etp",
                            "more than 2 splits of a parameter"},
                    BadText{"copiesOfNobody", "copies []", "group"},
                    BadText{"emptyRow", "stacked row 0", "[plan-limit]"}),
    [](const auto &info) { return info.param.name; });

struct BadForm {
  const char *name, *param, *message;
};
void PrintTo(const BadForm &each, std::ostream *out) { *out << each.name; }

class BadForms : public testing::TestWithParam<BadForm> {};

TEST_P(BadForms, AreRefused) {
  Plan plan =
      parsed(tables(fmt::format("param \"p\" : {} block b at 0 init zeros\n", GetParam().param)));
  test::expectRefused(plan, Rule::Split, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, BadForms,
    testing::Values(
        BadForm{"partOfAnotherSize", "f32[4,4] of [12,4] split 0 over tp",
                "has 4 of 12 elements in dimension 0, which is cut among 2 ranks"},
        BadForm{"cutWithoutASplit", "f32[4,4] of [8,8] split 0 over tp",
                "has 4 of 8 elements in dimension 1, which is cut among 1 ranks"},
        BadForm{"moreRanksThanRows", "f32[6,4] split 0 over tp parts 2",
                "has 6 elements in dimension 0, which 2 ranks cannot cut in 2 equal parts"},
        BadForm{"otherDimensions", "f32[4,4] of [8] split 0 over tp",
                "both need the same number of dimensions"},
        BadForm{"dimensionSplitTwice", "f32[4,4] of [16,4] split 0 over tp split 0 over ep",
                "has two splits of dimension 0"},
        BadForm{"twoSplitsOfARow", "f32[4,2,2] of [4,4,4] split 1 over tp split 2 over ep",
                "has 2 splits inside of a row"},
        BadForm{"unevenParts", "f32[4,4] of [8,4] split 0 over tp parts 3",
                "has 4 elements in dimension 0, which are not 3 equal parts"},
        BadForm{"partsOfColumns", "f32[4,4] of [4,8] split 1 over tp parts 2",
                "only dimension 0, of its rows, can have several"},
        BadForm{"splitOverTheAxesOfItsBlock", "f32[4,4] of [8,4] split 0 over dp",
                "uses the mesh axis 'dp' for a split"},
        BadForm{"splitAndCopiedOverOneAxis", "f32[4,4] of [8,4] split 0 over tp copies [tp]",
                "uses the mesh axis 'tp' for copies"},
        BadForm{"copiedTwice", "f32[4,4] copies [tp, tp]", "uses the mesh axis 'tp' for copies"},
        BadForm{"copiedOverTheAxesOfItsBlock", "f32[4,4] copies [all]",
                "uses the mesh axis 'dp' for copies"},
        BadForm{"stackOfNumbers", "f32[16] stacked row 1", "is stacked and has 1 dimension"},
        BadForm{"rowsOfAnotherSize", "f32[2,4,8] stacked row 4",
                "is stacked with rows of 4 elements; each row of its tensors has 8"}),
    [](const auto &info) { return info.param.name; });

/// Shards may cut a stack between its tensors, but not inside a row.
TEST(Splits, ShardsCutStacksBetweenRows) {
  constexpr const char *kStack =
      "param \"p\" : f32[2,5,8] stacked row 8 block b at {} init zeros\n";
  Plan fits = parsed(tables(fmt::format(fmt::runtime(kStack), 0), "numel 96 shard 48 over dp"));
  EXPECT_TRUE(verify(fits).empty()) << render(fits, verify(fits)[0]);
  Plan cut = parsed(tables(fmt::format(fmt::runtime(kStack), 4), "numel 96 shard 48 over dp"));
  test::expectRefused(cut, Rule::Parameter, "cuts a row of 8 elements of parameter 'p'");
}

// ---- training ----

TEST(Tensor, IsAcceptedByVerifierAndOracle) {
  Plan plan = parsed(planText("tensor"));
  test::expectAccepted(plan);
  EXPECT_EQ(oracle::findBreak(plan), "");
}

TEST(Splits, AreOverRanksOfOneRole) {
  for (uint16_t axis : {0, 1}) { // roles may divide `dp`, but not `tp`
    Plan plan = parsed(planText("tensor"));
    Role other = plan.roles[0];
    other.name = "other";
    plan.roles[0].where = {{axis, 0, 1}};
    other.where = {{axis, 1, 2}};
    plan.roles.push_back(std::move(other));
    EXPECT_EQ(oracle::findBreak(plan) == "", axis == 0);
    if (axis == 1)
      test::expectRefused(plan, Rule::Split,
                          "role 'all' has 1 of 2 ranks along 'tp', over which parameter 'table' is "
                          "split or copied; it needs all of them");
    else
      EXPECT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
  }
}

} // namespace
} // namespace shardc::plan
