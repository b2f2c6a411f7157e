// Collectives that exchange parts of ranks within a layer: all_to_all, shift and all_reduce_max.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "Oracle.h"
#include "TestPlans.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::edited;
using test::parsed;
using test::planText;
using test::WrongEdit;
using ::testing::HasSubstr;

TEST(Exchanges, ComeBackAsText) {
  std::string text = print(parsed(planText("ring")));
  EXPECT_THAT(text, HasSubstr("%k = shift %own {by = 1} channel ring :"));
  EXPECT_THAT(text, HasSubstr("%dk = shift %dy {by = -1} channel ring :"));
  EXPECT_THAT(text, HasSubstr("%h = all_to_all %y channel ring :"));
  EXPECT_THAT(text, HasSubstr("%m = all_reduce_max %h channel ring :"));
  EXPECT_EQ(print(parsed(text)), text);
}

/// Two ranks, 64 bytes each: a shift sends all of them, an all_to_all one of two parts.
TEST(Exchanges, AreTraffic) {
  Plan plan = parsed(planText("ring"));
  std::vector<TrafficRow> rows = trafficOfStep(plan, plan.roles[0]);
  auto sent = [&](OpKind kind) {
    auto row = std::ranges::find(rows, kind, &TrafficRow::kind);
    return row == rows.end() ? -1 : row->sentBytes / row->calls;
  };
  EXPECT_EQ(sent(OpKind::Shift), 64);
  EXPECT_EQ(sent(OpKind::AllToAll), 32);
  EXPECT_EQ(sent(OpKind::AllReduceMax), 64);
}

class WrongExchange : public testing::TestWithParam<WrongEdit> {};

TEST_P(WrongExchange, IsRefused) {
  test::expectRefused(parsed(edited("ring", {GetParam().edit})), GetParam().rule,
                      GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Ops, WrongExchange,
    testing::Values(
        WrongEdit{
            "unequalParts",
            Rule::Shape,
            {"%h = all_to_all %y channel ring : f32[4,4]",
             "%v = view %y : f32[15] activations at work 368\n    %w15 = all_to_all %v channel "
             "ring : f32[15] activations at work 432\n    %h = gelu %y : f32[4,4]"},
            "'all_to_all' needs (members elements) of a size that fits in operand 'x'"},
        WrongEdit{
            "otherElements",
            Rule::Shape,
            {"%h = all_to_all %y channel ring : f32[4,4]",
             "%v = all_to_all %y channel ring : f32[4,2] activations at work 432\n    %h = gelu "
             "%y : f32[4,4]"},
            "'all_to_all' needs (members elements) = 16 in result 'y'"},
        WrongEdit{
            "shiftOfOtherType",
            Rule::Shape,
            {"%k = shift %own {by = 1} channel ring : f32[4,4]",
             "%v = shift %own {by = 1} channel ring : bf16[4,4] activations at work 304\n    %k = "
             "gelu %own : f32[4,4]"},
            "'shift' needs the element type of 'x' in result 'y'"},
        WrongEdit{"shiftTooFar",
                  Rule::Attribute,
                  {"{by = -1}", "{by = -9223372036854775807}"},
                  "attribute 'by' is -9223372036854775807; it takes -1048576 to 1048576"},
        WrongEdit{
            "largestOfWords",
            Rule::Shape,
            {"%dtable = embedding_bwd %dx, %ids",
             "%i = all_reduce_max %tokens channel ring : i32[1,8] data at work 0\n    %dtable = "
             "embedding_bwd %dx, %ids"},
            "'all_reduce_max' needs floating point in operand 'x'"},
        WrongEdit{"resultOverOperand",
                  Rule::Overlap,
                  {"%dk = shift %dy {by = -1} channel ring : f32[4,4] activations at work 624",
                   "%dk = shift %dy {by = -1} channel ring : f32[4,4] activations at work 608"},
                  "%dk"},
        WrongEdit{
            "accumulates",
            Rule::Tie,
            {"%dk = shift %dy {by = -1} channel ring : f32[4,4] activations at work 624",
             "%dk = shift %dy {by = -1} channel ring acc(0 = %dh) : f32[4,4] activations at work "
             "496"},
            "does not accumulate"}),
    [](const auto &info) { return info.param.name; });

/// A shift does not change a value that all members have: here the gradient of the same rows.
TEST(Exchanges, AShiftOfWhatAllHaveChangesNothing) {
  Plan plan = parsed(
      edited("ring", {{"%k = shift %own {by = 1} channel ring : f32[4,4] activations at work 304",
                       "%E = shift %tokens {by = 1} channel ring : i32[1,8] data at work 304\n    "
                       "%k = gelu %own : f32[4,4] activations at work 304"}}));
  EXPECT_TRUE(verify(plan).empty());
  EXPECT_EQ(oracle::findBreak(plan), "");
}

} // namespace
} // namespace shardc::plan
