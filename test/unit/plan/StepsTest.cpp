// State of unknown types, plans whose ranks have several roles, and plans for which the verifier
// once took too long or crashed.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;
using test::replaced;

struct BrokenState {
  const char *name;
  Rule rule;
  const char *plan;
  std::vector<test::Edit> edits;
  const char *message; ///< a part of the first finding's message
};
void PrintTo(const BrokenState &each, std::ostream *out) { *out << each.name; }

class States : public testing::TestWithParam<BrokenState> {};

TEST_P(States, AreRefusedByTheirRule) {
  Plan before = parsed(planText(GetParam().plan));
  ASSERT_TRUE(verify(before).empty()) << render(before, verify(before)[0]);
  Plan plan = parsed(test::edited(GetParam().plan, GetParam().edits));
  test::expectRefused(plan, GetParam().rule, GetParam().message);
}

std::string nameOfState(const testing::TestParamInfo<BrokenState> &info) { return info.param.name; }

const BrokenState kStates[] = {
    {"startThatIsRun",
     Rule::Host,
     "fsdp",
     {{"start init", "run init"}},
     "'step.reset' in segment 'init' replaces state that a loaded checkpoint may have filled"},
    {"parameterOfIntegers",
     Rule::State,
     "fsdp",
     {{"\"layers.0.weight\" : f32[8,8]", "\"layers.0.weight\" : i32[8,8]"}},
     "parameter 'layers.0.weight' has type i32; it needs to be f32, bf16, f16 or f8e4m3"},
    {"wireThatNobodyAdds",
     Rule::State,
     "mesh",
     {{"    %s1 = all_reduce %r1 {block = 1  average = true} channel reduce.tp unit layers.1 "
       ": f32[8] grads at work 416\n",
       "    %s1 = cast %r1 on reduce : f32[8] grads at work 416\n    %f = fill : f8e4m3[8] grads "
       "at "
       "work "
       "544\n    %s = all_reduce %f channel reduce.tp after %f : f8e4m3[8] grads at "
       "work "
       "544\n"}},
     "'all_reduce' supports sums of f32, bf16, f16 and f64"},
};

INSTANTIATE_TEST_SUITE_P(Plans, States, testing::ValuesIn(kStates), nameOfState);

/// Splits a role: its ranks of dp from `middle` on get a new role.
Plan split(std::string_view name, int64_t middle) {
  Plan plan = parsed(planText(name));
  auto axis = static_cast<uint16_t>(plan.mesh.size() - 1);
  plan.roles.push_back(plan.roles[0]);
  plan.roles[1].name = "others";
  plan.roles[0].where = {{axis, 0, middle}};
  plan.roles[1].where = {{axis, middle, plan.mesh[axis].size}};
  return plan;
}

TEST(Roles, MayDivideTheRanksThatShareBlocks) {
  for (const char *name : {"ddp", "fsdp", "zero", "mesh", "exchange", "feed", "hsdp"}) {
    Plan plan = split(name, 1);
    EXPECT_TRUE(verify(plan).empty()) << name << ": " << render(plan, verify(plan)[0]);
  }
}

/// For coordinate 0 of the other axis, one role has both ranks of dp; for coordinate 1, each rank
/// has its own role.
Plan splitTwice(std::string_view name) {
  Plan plan = parsed(planText(name));
  for (int64_t rank : {0, 1}) {
    plan.roles.push_back(plan.roles[0]);
    plan.roles.back().name = fmt::format("rank {}", rank);
    plan.roles.back().where = {{0, 1, 2}, {1, rank, rank + 1}};
  }
  plan.roles[0].where = {{0, 0, 1}};
  return plan;
}

TEST(Roles, MayDivideThemAlongTwoAxes) {
  for (const char *name : {"mesh", "hsdp"}) {
    Plan plan = splitTwice(name);
    EXPECT_TRUE(verify(plan).empty()) << name << ": " << render(plan, verify(plan)[0]);
  }
}

TEST(Findings, JudgeArityBeforeOperandsAreNamed) {
  for (const char *op : {"%t = step.begin else(0 = %s) if first : u8[128] step",
                         "%t = adamw %s {block = 0} else(0 = %s) if first : u8[128] step",
                         "%t = all_gather else(0 = %s) group g if first : u8[128] step"}) {
    Plan plan =
        parsed(std::string("shardc.plan 2 logical \"x\"\nmesh { dp = 1 }\ngroups { g = [dp] }\n"
                           "role a \"all\" {\n  cell @s : u8[128] in state for step\n"
                           "  segment m body {\n    in %s = @s\n    ") +
               op + "\n  }\n  program { run m }\n}\n");
    std::vector<Finding> findings = verify(plan);
    ASSERT_FALSE(findings.empty());
    EXPECT_EQ(findings[0].rule, Rule::Arity) << render(plan, findings[0]);
  }
}

std::string squaresOf(int operands) {
  std::string list = "%a";
  for (int i = 1; i < operands; ++i)
    list += ", %a";
  return "shardc.plan 2 placed \"x\"\nmesh { dp = 1 } groups { dp = [dp] } data dp\nrole "
         "all \"x\" {\n"
         "  arenas { state = 0 work = 64 sym = 0 host = 0 }\n  segment m {\n"
         "    %a = fill : f64[2] activations at work 0\n    %s = sum_squares " +
         list + " : f64[1] step at work 32\n  }\n  program { run m }\n}\n";
}

TEST(Findings, SayOnceWhatIsWrongWithManyOperands) {
  Plan plan = parsed(squaresOf(60000));
  std::vector<Finding> findings = verify(plan);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rule, Rule::Index);
  EXPECT_LT(findings[0].message.size(), 500u);
}

/// The number of visits that the verifier needs for the plan, rounded up to a power of two.
uint64_t visitsOf(const Plan &plan) {
  for (uint64_t visits = 1;; visits *= 2) {
    std::vector<Finding> findings = verify(plan, 20, visits);
    if (std::ranges::none_of(findings, [](const Finding &f) { return f.rule == Rule::Index; }))
      return visits;
  }
}

/// Segments that each overwrite all cells.
std::string manyCells(int cells, int segments) {
  std::string text = "shardc.plan 2 placed \"x\"\nmesh { dp = 1 } groups { dp = [dp] } data dp"
                     "\nrole all \"x\" {\n"
                     "  arenas { state = 65536 work = 0 sym = 0 host = 0 }\n";
  for (int i = 0; i < cells; ++i)
    text += fmt::format("  cell @c{} : f32[4] in state for params at {}\n", i, 16 * i);
  std::string program;
  for (int i = 0; i < segments; ++i) {
    text += fmt::format("  segment m{} {{\n    %a = fill : f32[{}] params at state 0\n  }}\n", i,
                        4 * cells);
    program += fmt::format("    run m{}\n", i);
  }
  return text + "  program {\n" + program + "  }\n}\n";
}

/// Values at places that depend on dp, each at the place of the next value of another rank.
std::string manyMovingPlaces(int values) {
  std::string text = "shardc.plan 2 placed \"x\"\nmesh { dp = 16384 } groups { dp = [dp] } data dp"
                     "\nrole all \"x\" {\n"
                     "  arenas { state = 0 work = 1048576 sym = 0 host = 0 }\n  segment m {\n";
  for (int i = 0; i < values; ++i)
    text += fmt::format("    %v{0} = fill : f32[4] params at work {1} + 16*dp\n", i, 16 * i);
  return text + "  }\n  program { run m }\n}\n";
}

TEST(Work, OfPlansThatAreFineIsNearLinear) {
  std::string zero = planText("zero");
  auto withRuns = [&](int times) {
    std::string runs;
    for (int i = 0; i < times; ++i)
      runs += "        run eval 2\n";
    return parsed(replaced(zero, "        run eval 2\n", runs));
  };
  EXPECT_LE(visitsOf(withRuns(160)), 32 * visitsOf(withRuns(10)));
}

TEST(Work, OfManySegmentsOverManyCellsIsCounted) {
  Plan plan = parsed(manyCells(2000, 200));
  EXPECT_TRUE(verify(plan).empty());
  EXPECT_GE(visitsOf(plan), uint64_t{2000} * 200);
  std::vector<Finding> findings = verify(plan, 20, uint64_t{1} << 18);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rule, Rule::Index);
}

TEST(Work, OfPlacesThatMoveIsCounted) {
  Plan plan = parsed(manyMovingPlaces(200));
  EXPECT_TRUE(verify(plan).empty());
  EXPECT_GE(visitsOf(plan), uint64_t{200} * 200) << "each meets each other one on some rank";
  std::vector<Finding> findings = verify(plan, 20, uint64_t{1} << 12);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rule, Rule::Index);
}

} // namespace
} // namespace shardc::plan
