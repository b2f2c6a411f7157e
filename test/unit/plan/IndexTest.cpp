// Ops that compute a rank's part by its index in a group: text, form, shapes, and the sums to which
// their results contribute.
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
using test::planText;
using test::WrongEdit;
using ::testing::HasSubstr;

TEST(Indices, ComeBackAsText) {
  std::string text = print(parsed(planText("vocab")));
  EXPECT_THAT(text, HasSubstr("%e = embedding %tokens, %table group tp after %W :"));
  EXPECT_THAT(text, HasSubstr("%d = dropout %es, %samples {p = 0.25} group tp :"));
  EXPECT_EQ(print(parsed(text)), text);
}

class WrongIndex : public testing::TestWithParam<WrongEdit> {};

TEST_P(WrongIndex, IsRefused) {
  test::expectRefused(parsed(edited("vocab", {GetParam().edit})), GetParam().rule,
                      GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Ops, WrongIndex,
    testing::Values(
        WrongEdit{"opWithoutParts",
                  Rule::Collective,
                  {"matmul %dl, %head", "matmul %dl, %head group tp"},
                  "'matmul' is not a collective, so it cannot have a group or a channel"},
        WrongEdit{"channel",
                  Rule::Collective,
                  {"%tokens, %table group tp", "%tokens, %table channel rows"},
                  "'embedding' is not a collective, so it cannot have a group or a channel"},
        WrongEdit{
            "sharedBehindTheBackwardPass",
            Rule::Index,
            {"%table = view %W", "%table = view %W {shared = true} group tp"},
            "'view' is of a value that a group shares; it needs a group, a constant offset and a "
            "logical plan"},
        WrongEdit{"otherStatistics",
                  Rule::Shape,
                  {"group tp : f32[3,4] activations", "group tp : f32[4,3] activations"},
                  "'vocab_stats' needs 3 in result 'stats'"},
        WrongEdit{
            "lossesOfOtherRows",
            Rule::Shape,
            {"= all_gather %s channel rows : f32[6,4]", "= all_gather %s channel rows : f32[12,2]"},
            "'vocab_loss' needs rows = 2 in operand 'mask'"}),
    [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::plan
