// Master weights in two cells: how plans keep the halves together, and which plans the verifier
// refuses.
#include <gtest/gtest.h>

#include "Oracle.h"
#include "TestPlans.h"
#include "runtime/plan/HostCells.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::edited;
using test::parsed;
using test::planText;

constexpr const char *kPlan = "remainders";

TEST(Remainders, AreHeldByCheckpointsWithTheirWeights) {
  Plan plan = parsed(planText(kPlan));
  test::expectAccepted(plan);
  const Role &role = plan.roles[0];
  uint32_t lower = test::cellNamed(plan, "master.layers.0"), upper = test::cellNamed(plan, "ws");
  EXPECT_EQ(upperHalfOf(role, lower), upper);
  EXPECT_EQ(upperHalfOf(role, upper), kNone);
  std::vector<bool> isSaved = cellsOfState(role, savedBlocks(plan, role));
  EXPECT_TRUE(isSaved[lower] && isSaved[upper]);
  EXPECT_FALSE(isSaved[test::cellNamed(plan, "w")]);
}

struct Apart {
  const char *name;
  Rule rule;
  std::vector<test::Edit> edits;
  const char *message; ///< a part of the first finding's message
};
void PrintTo(const Apart &each, std::ostream *out) { *out << each.name; }

class RemaindersApart : public testing::TestWithParam<Apart> {};

TEST_P(RemaindersApart, AreRefused) {
  Plan plan = parsed(edited(kPlan, GetParam().edits));
  test::expectRefused(plan, GetParam().rule, GetParam().message);
  EXPECT_NE(oracle::findBreak(plan), "");
}

const Apart kApart[] = {
    {"weightsThatAreNotLeft",
     Rule::State,
     {{"    out @ws = %w.new\n", ""}},
     "'adamw' makes weights of block 'layers.0' and does not leave them in cell '@ws'"},
    {"remaindersThatAreNotLeft",
     Rule::State,
     {{"    out @master.layers.0 = %master.new\n", ""}},
     "'adamw' makes remainders of block 'layers.0' and does not leave them"},
    {"weightsOfAnotherCell",
     Rule::State,
     {{"    in %ws = @ws at state 512\n    in %gs", "    in %ws = @other at state 512\n    in %gs"},
      {"  cell @g :", "  cell @other : bf16[32] in state for params at 512\n  cell @g :"}},
     "'adamw' takes '%ws' as weights of block 'layers.0'; it needs the content of cell '@ws'"},
    {"weightsFromElsewhere",
     Rule::State,
     {{"    %x = fill", "    %other = fill {value = 1.0} : bf16[32] params at state 512\n"
                        "    %x = fill"},
      {"    out @w = %W\n  }\n  program", "    out @w = %W\n    out @ws = %other\n  }\n  program"}},
     "segment 'eval' leaves '%other' in cell '@ws'; only what makes both remainders and weights"},
    {"noWeightsBesideThem",
     Rule::State,
     {{"cell @ws weight_shard of layers.0", "cell @ws"}},
     "the role has no cell of the kind 'master' for them, or none with this rank's weights in "
     "bf16"},
    {"remaindersInNoCellOfMasters",
     Rule::State,
     {{"cell @master.layers.0 master of layers.0 : u16[32]", "cell @master.layers.0 : u16[32]"}},
     "the role has no cell of the kind 'master' for them"},
};

INSTANTIATE_TEST_SUITE_P(Halves, RemaindersApart, testing::ValuesIn(kApart),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
} // namespace shardc::plan
