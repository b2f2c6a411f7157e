// Shards inside groups of ranks, with optimizer state that is divided between the groups too:
// gradients are scattered and weights gathered between groups.
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

constexpr const char *kScatters = "channel reduce.outer unit layers.0 if last";
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

const BrokenDivision kBrokenDivisions[] = {
    {"gradientsScatteredTooEarly",
     Rule::Cell,
     {{kScatters, "channel reduce.outer unit layers.0 if first"}},
     "reads cell '@gs'"},
    {"weightsThatAreNotGathered",
     Rule::Cell,
     {{kGather, kNoGather.c_str()},
      {"    out @step = %summed\n    out @w = %shard\n", "    out @step = %summed\n"}},
     "reads cell '@w' in sym [0, 64), which has no content"},
    {"weightsGatheredTooLate",
     Rule::Cell,
     {{kGather, kLateGather.c_str()}},
     "reads cell '@w' in sym [0, 64), which has no content"},
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
