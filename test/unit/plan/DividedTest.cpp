// Shards inside groups of ranks, with optimizer state that is divided between the groups too:
// gradients are scattered and weights gathered between groups, and each element counts once in the
// norm.
#include <gtest/gtest.h>

#include "Compare.h"
#include "TestPlans.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

struct BrokenDivision {
  const char *name;
  Rule rule;
  std::vector<test::Edit> edits; ///< edits of plans/hybrid.plan
  const char *message;           ///< a part of the first finding's message
};
void PrintTo(const BrokenDivision &each, std::ostream *out) { *out << each.name; }

constexpr const char *kScatter = "    %gs = reduce_scatter %sum {block = 0} channel reduce.outer "
                                 "unit layers.0 if last : f32[16] "
                                 "grads at work 128\n";
constexpr const char *kScatters = "channel reduce.outer unit layers.0 if last";
constexpr const char *kCopies = "%ss, %stop :";
/// The gathers of training, up to a view of the parameter.
constexpr const char *kGather =
    "    %shard = all_gather %ws {block = 0} channel gather unit layers.0 else(0 = %w) if first : "
    "f32[32] params at sym 0\n    %W = all_gather %shard {block = 0} channel gather.dp unit "
    "layers.0 : f32[64] comm at sym 128\n    %weight";

/// The gathers of training, in which the gather between groups has the clauses `between`; without
/// that gather if `between` is empty.
std::string gathers(const std::string &between) {
  std::string shard = between.empty() ? "%w" : "%shard";
  std::string first;
  if (!between.empty())
    first = "    %shard = all_gather %ws {block = 0} " + between + " : f32[32] params at sym 0\n";
  return first + "    %W = all_gather " + shard +
         " {block = 0} channel gather.dp unit layers.0 : f32[64] comm at sym 128\n    %weight";
}

const std::string kNoGather = gathers("");
const std::string kLateGather = gathers("channel gather unit layers.0 else(0 = %w) if last");
const std::string kGatherInside = gathers("channel gather.dp unit layers.0 else(0 = %w) if first");

const BrokenDivision kBrokenDivisions[] = {
    {"gradientsThatAreNotScattered",
     Rule::Sum,
     {{kScatter,
       "    %part = view %sum {coef = 16} group outer : f32[16] grads at work 0 + 64*outer\n    "
       "%gs = cast %part unit layers.0 on reduce if last : f32[16] grads at work 128\n"}},
     "it is not summed over 'outer'"},
    {"gradientsScatteredAgainInsideGroups",
     Rule::Block,
     {{kScatters, "channel reduce unit layers.0 if last"}},
     "over group 'dp'"},
    {"gradientsScatteredTooEarly",
     Rule::Cell,
     {{kScatters, "channel reduce.outer unit layers.0 if first"}},
     "reads cell '@gs'"},
    {"gradientsScatteredInEachMicrobatch",
     Rule::Lost,
     {{kScatters, "channel reduce.outer unit layers.0"}},
     "overwritten before anything reads it"},
    {"weightsThatAreNotGathered",
     Rule::Cell,
     {{kGather, kNoGather.c_str()},
      {"    out @step = %summed\n    out @w = %shard\n", "    out @step = %summed\n"}},
     "reads cell '@w' in sym [0, 64), which has no content"},
    {"weightsGatheredTooLate",
     Rule::Cell,
     {{kGather, kLateGather.c_str()}},
     "reads cell '@w' in sym [0, 64), which has no content"},
    {"weightsGatheredInsideGroups",
     Rule::Block,
     {{kGather, kGatherInside.c_str()}},
     "over group 'dp'"},
    {"squaresOfShards",
     Rule::Sum,
     {{"    in %gs = @gs at work 128\n",
       "    in %gs = @gs at work 128\n    in %g = @g at work 0\n"},
      {"%ss = sum_squares %gs", "%ss = sum_squares %g"}},
     "it is not summed over 'outer'"},
    {"squaresAddedTwice",
     Rule::Sum,
     {{"channel misc group all", "channel misc group all\nchannel inside group outer"},
      {"    %sums = all_reduce %partial",
       "    %inside = all_reduce %partial channel inside : f64[4] step at work 528\n    %sums = "
       "all_reduce %inside"}},
     "which are not parts of a sum"},
    {"squaresOfCopiesThatNobodyHas",
     Rule::Step,
     {{"= sum_squares %gs :", "= sum_squares %gs copies 2 :"}},
     "each rank adds 1 in 2 of its squares"},
    {"squaresThatAreNotAdded",
     Rule::Sum,
     {{kCopies, "%ss, %stop {norm_replicated = true} :"},
      {"= step.finish %step, %sums, %ss :",
       "= step.finish %step, %sums, %ss {norm_replicated = true} :"}},
     "may differ between ranks along 'dp' and 'outer'"},
};

class Divided : public testing::TestWithParam<BrokenDivision> {};

TEST_P(Divided, PlansAreRefusedByVerifierAndOracle) {
  Plan plan = test::parsed(test::edited("hybrid", GetParam().edits));
  test::expectRefused(plan, GetParam().rule, GetParam().message);
  EXPECT_NE(oracle::findBreak(plan), "");
}

INSTANTIATE_TEST_SUITE_P(Plans, Divided, testing::ValuesIn(kBrokenDivisions),
                         [](const testing::TestParamInfo<BrokenDivision> &info) {
                           return info.param.name;
                         });

} // namespace
} // namespace shardc::plan
