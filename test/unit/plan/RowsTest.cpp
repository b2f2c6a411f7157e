// The tokens whose rows a rank has: verifier and oracle refuse plans in which an op takes wrong
// rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "Oracle.h"
#include "Sums.h"
#include "TestPlans.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::edited;
using test::parsed;
using test::planText;

struct WrongRows {
  const char *name;
  std::vector<test::Edit> edits;
  const char *message;
};
void PrintTo(const WrongRows &each, std::ostream *out) { *out << each.name; }

constexpr const char *kScatter =
    "    %es = reduce_scatter %e channel rows : f32[2,4] activations at work 64\n";
// Ranks take rows from a sum that all of them have.
#define TAKING(view, place)                                                                        \
  "    %ea = all_reduce %e channel rows : f32[4,4] activations at work 0\n"                        \
  "    %ev = view %ea " view " : f32[2,4] activations at work " place "\n"                         \
  "    %es = cast %ev : f32[2,4] activations at work 64\n"
constexpr const char *kInReverse = TAKING("{offset = 8  coef = -8} group tp", "32 - 32*tp");
constexpr const char *kOfOneMember = TAKING("{offset = 8}", "32");
constexpr const char *kFromTheMiddleOfRows = TAKING("{coef = 6} group tp", "0 + 32*tp");
constexpr const char *kOwn = TAKING("{coef = 8} group tp", "0 + 32*tp");
#undef TAKING

class Rows : public testing::TestWithParam<WrongRows> {};

TEST_P(Rows, OfOtherTokensAreRefused) {
  Plan plan = parsed(edited("vocab", GetParam().edits));
  test::expectRefused(plan, Rule::Origin, GetParam().message);
  EXPECT_NE(oracle::findSumBreak(plan), "");
}

/// A view that begins in the middle of a row has unknown rows, but dropout needs the numbers of
/// rows.
TEST(UnknownRows, AreRefusedByOpsThatCountRows) {
  Plan plan = parsed(edited("vocab", {{kScatter, kFromTheMiddleOfRows}}));
  test::expectRefused(plan, Rule::Origin,
                      "'dropout' needs to know the rows of '%es', which are not known");
}

constexpr test::Edit kNotDropped = {"dropout %es, %samples {p = 0.25} group tp :", "cast %es :"};

INSTANTIATE_TEST_SUITE_P(
    Plans, Rows,
    testing::Values(
        WrongRows{
            "inReverse",
            {{kScatter, kInReverse}, kNotDropped},
            "'vocab_stats' combines rows 2 to 3, 0 to 1 of '%l' with rows 0 to 3 of '%labels'"},
        WrongRows{
            "ofOneMember",
            {{kScatter, kOfOneMember}, kNotDropped},
            "'vocab_stats' combines rows 2 to 3 of part 0, 2 to 3 of part 1 of '%l' with rows 0 to "
            "3 of '%labels'"},
        WrongRows{"droppedInReverse",
                  {{kScatter, kInReverse}},
                  "'dropout' takes rows 2 to 3 of '%es', with the random numbers of rows 0 to 1, "
                  "at index 0 in group 'tp'"},
        WrongRows{"randomNumbersOfAll",
                  {{"%d = dropout %es, %samples {p = 0.25} group tp",
                    "%d = dropout %es, %samples {p = 0.25}"}},
                  "'dropout' takes rows 0 to 1 of '%es', with the random numbers of rows 0 to 3, "
                  "at index 0 in group 'tp'"},
        WrongRows{
            "gradientsOfOneMember",
            {{"    %dxs = reduce_scatter %dx channel rows : f32[2,4] activations at work 576\n",
              "    %da = all_reduce %dx channel rows : f32[4,4] activations at work 512\n"
              "    %dv = view %da : f32[2,4] activations at work 512\n"
              "    %dxs = cast %dv : f32[2,4] activations at work 576\n"}},
            "'dropout' takes rows 0 to 1 of '%dxs', with the random numbers of rows 2 to 3, "
            "at index 1 in group 'tp'"},
        WrongRows{
            "addedToOthers",
            {{"    %d = dropout %es,",
              "    %et = all_reduce %es channel rows : f32[2,4] activations at work 64\n"
              "    %d = dropout %et,"}},
            "'all_reduce' adds rows 0 to 1 of '%es' to rows 2 to 3, at index 1 in group 'tp'"}),
    [](const auto &info) { return info.param.name; });

class Index : public testing::TestWithParam<WrongRows> {};

TEST_P(Index, OfAnotherGroupIsRefused) {
  Plan plan = parsed(edited("vocab", GetParam().edits));
  test::expectRefused(plan, Rule::Split, GetParam().message);
  EXPECT_NE(oracle::findSumBreak(plan), "");
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Index,
    testing::Values(
        WrongRows{"gradientsOfAllRows",
                  {{"embedding_bwd %de, %tokens group tp", "embedding_bwd %de, %tokens"}},
                  "'embedding_bwd' selects its part by the index along no axis; its parameter "
                  "is divided along 'tp'"},
        WrongRows{"columnsOfTheVocabulary",
                  {{"vocab_stats %l, %labels group tp", "vocab_stats %l, %labels"}},
                  "'vocab_stats' selects its part by the index along no axis"},
        WrongRows{"gradientsOfOtherColumns",
                  {{"%mask, %n group tp", "%mask, %n group dp"}},
                  "'cross_entropy_bwd' selects its part by the index along 'dp'"}),
    [](const auto &info) { return info.param.name; });

/// A view that takes the same rows as a reduce_scatter is accepted.
TEST(OwnRows, AreAccepted) {
  Plan plan = parsed(edited("vocab", {{kScatter, kOwn}}));
  test::expectAccepted(plan);
  EXPECT_EQ(oracle::findBreak(plan), "");
}

} // namespace
} // namespace shardc::plan
