// Parameters that ranks have parts or copies of: text, form, sums of gradients, norms and saves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "Oracle.h"
#include "Saves.h"
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

// ---- saves ----

constexpr test::Edit kSaving = {"job {\n", "job {\n  checkpoint.save = \"ckpt\"\n"};

TEST(Saved, ElementsAreThere) {
  Plan plan = parsed(edited("tensor", {kSaving}));
  EXPECT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
  EXPECT_EQ(oracle::findSaveBreak(plan), "");
}

/// Ranks of two roles; the second role has a cell of this kind.
Plan withRoles(std::string_view kind, std::string_view param) {
  constexpr std::string_view kRoles =
      R"(shardc.plan 2 placed "roles"
needs {{ backend = host  gpu = ""  device_bytes = 65536 }}
job {{
  checkpoint.save = "ckpt"
}}
mesh {{ dp = 2 tp = 2 }}
groups {{ dp = [dp] tp = [tp] }}
block b numel 32 shard 16 over dp
param "p" : f32[8,4] {} block b at 0 init zeros
role first "w" where {{ dp = 0 to 0 }} {{
  arenas {{ state = 64  work = 0  sym = 0  host = 0 }}
  cell @w weight of b : f32[16] in state for params at 0
  program {{ }}
}}
role second "w" where {{ dp = 1 to 1 }} {{
  arenas {{ state = 64  work = 0  sym = 0  host = 0 }}
  cell @w {} of b : f32[16] in state for params at 0
  program {{ }}
}}
)";
  return parsed(fmt::format(kRoles, param, kind));
}

TEST(Saved, ElementsThatNoRoleHasAreRefused) {
  for (const char *param : {"of [16,4] split 0 over tp", "copies [tp]", ""}) {
    Plan plan = withRoles("weight_shard", param);
    test::expectRefused(plan, Rule::Save,
                        "no rank has the state of some elements of parameter 'p'");
    EXPECT_NE(oracle::findSaveBreak(plan), "");
    Plan whole = withRoles("weight", param);
    std::vector<Finding> findings = verify(whole);
    bool isMissing = std::ranges::count(findings, Rule::Save, &Finding::rule) != 0;
    EXPECT_FALSE(isMissing) << render(whole, findings[0]);
    EXPECT_EQ(oracle::findSaveBreak(whole), "");
  }
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

TEST(Saved, TensorsOfAStackHaveNamesOfTheirOwn) {
  Plan plan = parsed(edited("tensor", {kSaving,
                                       {"\"table\" : f32[4,4] copies [tp]",
                                        "\"up\" : f32[2,2,4] stacked row 4 copies [tp]"},
                                       {"\"up\" : f32[4,4] of", "\"up1\" : f32[4,4] of"}}));
  test::expectRefused(plan, Rule::Save,
                      "tensor 'up1' of parameter 'up1' has the name of another one");
  EXPECT_NE(oracle::findSaveBreak(plan), "");
}

} // namespace
} // namespace shardc::plan
