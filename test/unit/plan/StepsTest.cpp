// What steps as a whole must do: plans with incomplete sums, uncounted steps, state of unknown
// types or lost results; and plans for which the verifier once took too long or crashed.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "Sums.h"
#include "TestPlans.h"
#include "runtime/plan/Builder.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;
using test::replaced;

struct BrokenStep {
  const char *name;
  Rule rule;
  const char *plan;
  std::vector<test::Edit> edits;
  const char *message;   ///< a part of the first finding's message
  bool isOracles = true; ///< the oracle's sums find it too
};
void PrintTo(const BrokenStep &each, std::ostream *out) { *out << each.name; }

class Steps : public testing::TestWithParam<BrokenStep> {};

TEST_P(Steps, AreRefusedByTheirRule) {
  Plan before = parsed(planText(GetParam().plan));
  ASSERT_TRUE(verify(before).empty()) << render(before, verify(before)[0]);
  EXPECT_EQ(oracle::findSumBreak(before), "");
  Plan plan = parsed(test::edited(GetParam().plan, GetParam().edits));
  test::expectRefused(plan, GetParam().rule, GetParam().message);
  if (GetParam().isOracles) {
    EXPECT_NE(oracle::findSumBreak(plan), "");
  }
}

std::string nameOfStep(const testing::TestParamInfo<BrokenStep> &info) { return info.param.name; }

constexpr const char *kReduceG1 = "    %r1 = all_reduce %G1 {average = true} channel reduce "
                                  "unit layers.1 else(0 "
                                  "= %G1) if last after %dw1 : f32[64] grads at work 256\n";

const BrokenStep kSums[] = {
    {"gradientThatRanksDoNotSum",
     Rule::Sum,
     "ddp",
     {{kReduceG1, ""}, {"out @g1 = %r1", "out @g1 = %G1"}},
     "lacks contributions from other ranks: it is not summed over 'dp'"},
    {"useWithoutItsContribution",
     Rule::Sum,
     "fsdp2",
     {{"    %dt0 = embedding_bwd %dh0, %tokens : f32[8,8] grads at work 992\n", ""},
      {" acc(0 = %dt0)", ""}},
     "has contributions of 8 rows of each microbatch; it needs those of 16"},
    {"useThatContributesAgain",
     Rule::Sum,
     "fsdp2",
     {{"    %db0 = reduce_rows", "    %dt1 = embedding_bwd %dh0, %tokens acc(0 = %dw0) : f32[8,8] "
                                 "grads at work 992\n    %db0 = reduce_rows"},
      {"pack %dw0 {block = 0}", "pack %dt1 {block = 0}"}},
     "has contributions of 24 rows of each microbatch; it needs those of 16"},
    {"microbatchesThatAreNotAdded",
     Rule::Lost,
     "ddp",
     {{" acc(0 = %a1 if not_first)", ""}},
     "leaves '%r1' in cell '@g1', which is overwritten before anything reads it"},
    {"shardsThatAreNotAdded",
     Rule::Lost,
     "fsdp",
     {{" acc(0 = %g1 if not_first)", ""}},
     "leaves '%r1' in cell '@g1', which is overwritten before anything reads it"},
    {"microbatchesThatAreReadAndNotAdded",
     Rule::Sum,
     "fsdp",
     {{" acc(0 = %g1 if not_first)", ""},
      {"    %dw1 = matmul",
       "    %seen = gelu %g1 on reduce if not_first : f32[16] grads at work 2496\n"
       "    %dw1 = matmul"},
      {"work = 2496", "work = 2560"}},
     "lacks contributions from some of the step's microbatches"},
    {"sumOverRanksThatIsAddedTo",
     Rule::Sum,
     "ddp",
     {{"else(0 = %G1) if last", "else(0 = %G1) if not_first"}},
     "mixes values that are summed over ranks with values that are not"},
    {"sumOfTheSame",
     Rule::Sum,
     "mesh",
     {{"{block = 1  average = true}", "{block = 1}"}},
     "counts contributions more than once"},
    {"sumOfASum",
     Rule::Sum,
     "fsdp",
     {{"    out @step = %summed\n    out @g1 = %r1",
       "    %r2 = all_reduce %r1 channel reduce : f32[16] grads at work 2112\n"
       "    out @step = %summed\n    out @g1 = %r2"}},
     "which are not parts of a sum"},
    {"gradientThatIsNone",
     Rule::Sum,
     "ddp",
     {{"%dw1 = matmul %h0, %h1 {trans_a = true} acc(0 = %a1 if not_first)",
       "%dw1 = fill acc(0 = %a1 if not_first)"}},
     "has no contribution"},
    {"gradientOfSomeMicrobatches",
     Rule::Sum,
     "fsdp",
     {{"acc(0 = %g1 if not_first) after %dw1",
       "acc(0 = %g1 if not_first) else(0 = %g1) if not_last "
       "after %dw1"}},
     "lacks contributions from some of the step's microbatches"},
};

const BrokenStep kSteps[] = {
    {"stepThatNeverBegins",
     Rule::Step,
     "fsdp",
     {{"else(0 = %step) if first", "else(0 = %step) if last"}},
     "'loss.add' adds losses to a step that has not begun"},
    {"stepThatBeginsTwice",
     Rule::Step,
     "fsdp",
     {{"step.begin %step else(0 = %step) if first", "step.begin %step"}},
     "begins a step before the last one has ended"},
    {"stepWithoutLosses",
     Rule::Step,
     "fsdp",
     {{"    %summed = loss.add %begun, %dh1, %n : u8[128] step at state 0\n", ""},
      {"out @step = %summed", "out @step = %begun"}},
     "ends a step without the losses"},
    {"lossesOfSomeMicrobatches",
     Rule::Step,
     "fsdp",
     {{"loss.add %begun, %dh1, %n :", "loss.add %begun, %dh1, %n else(0 = %begun) if last :"}},
     "ends a step without the losses"},
    {"lossesTwice",
     Rule::Step,
     "fsdp",
     {{"    %summed = loss.add",
       "    %twice = loss.add %begun, %dh1, %n : u8[128] step at state 0\n"
       "    %summed = loss.add"},
      {"%summed = loss.add %begun", "%summed = loss.add %twice"}},
     "adds the losses of a microbatch a second time"},
    {"noUpdate",
     Rule::Lost,
     "fsdp",
     {{"      run update\n", ""}},
     "is overwritten before anything reads it"},
    {"noSteps",
     Rule::Step,
     "fsdp",
     {{"    steps 3 {\n      run micro 4\n      run update\n    }\n", ""}},
     "role 'all' updates blocks or saves checkpoints, but its program has no 'steps'"},
    {"updateTwice",
     Rule::Step,
     "fsdp",
     {{"      run update\n", "      run update\n      run update\n"}},
     "ends a step that has not begun"},
    {"updateInSomeSteps",
     Rule::Step,
     "fsdp",
     {{"      run update\n", "      every 2 { run update }\n"}},
     ""},
    {"flagFromElsewhere",
     Rule::Step,
     "fsdp",
     {{"    %ss = sum_squares", "    %flag = fill : i32[1] step at work 64\n    %ss = sum_squares"},
      {"step.pack %step, %ss, %stop", "step.pack %step, %ss, %flag"}},
     "takes its stop flag from a value other than cell '@stop'"},
    {"normOfAnotherSum",
     Rule::Step,
     "fsdp",
     {{"    %ss = sum_squares", "    %other = sum_squares %g0, %g1 : f64[1] step at work 64\n"
                                "    %ss = sum_squares"},
      {"step.finish %step, %sums, %ss", "step.finish %step, %sums, %other"}},
     "takes sums that are not the result of 'step.pack'"},
    {"normOfSomeBlocks",
     Rule::Step,
     "fsdp",
     {{"sum_squares %g0, %g1", "sum_squares %g0"}},
     "the norm leaves out block 'layers.1'"},
    {"blockThatIsNotUpdated",
     Rule::Step,
     "fsdp",
     {{"    %w1.new = sgd %g1, %w1, %finished {block = 1} unit layers.1 : f32[16] params at state "
       "192 "
       "loc 1\n",
       ""},
      {"    out @w.layers.1 = %w1.new\n", ""}},
     "has a step that does not update block 'layers.1'"},
};

const BrokenStep kOthers[] = {
    {"startThatIsRun",
     Rule::Host,
     "fsdp",
     {{"start init", "run init"}},
     "segment 'init' fills cell '@step', which a loaded checkpoint may have filled"},
    {"parameterOfIntegers",
     Rule::State,
     "fsdp",
     {{"\"layers.0.weight\" : f32[8,8]", "\"layers.0.weight\" : i32[8,8]"}},
     "parameter 'layers.0.weight' has type i32; it needs to be f32, bf16, f16 or f8e4m3",
     false},
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
     "'all_reduce' supports sums of f32, bf16, f16 and f64",
     false},
    {"contentForNobody",
     Rule::Lost,
     "fsdp",
     {{"  cell @g0 :", "  cell @left : f32[8,8] in work for grads at 256\n  cell @g0 :"},
      {"    %dh1 = gelu",
       "    %more = gelu %h1 : f32[8,8] activations at work 1536\n    %dh1 = gelu"},
      {"  cell @left : f32[8,8] in work for grads at 256",
       "  cell @left : f32[8,8] in work for grads at 1536"},
      {"    out @g1 = %r1", "    out @g1 = %r1\n    out @left = %more"}},
     "leaves '%more' in cell '@left', which is overwritten before anything reads it"},
    {"sumWithoutItsTie",
     Rule::Lost,
     "fsdp",
     {{"    %dw1 = matmul",
       "    %before = matmul %h0, %dh1 {trans_a = true} : f32[8,8] grads at work "
       "1024 loc 0\n    %dw1 = matmul"}},
     "no op reads '%before' before '%dw1' overwrites it",
     false},
    {"sumWhoseNameNobodyTakes",
     Rule::Lost,
     "fsdp",
     {{"    %dw1 = matmul",
       "    %before = matmul %h0, %dh1 {trans_a = true} : f32[8,8] grads at work "
       "1024 loc 0\n    %name = view %before : f32[8,8] grads at work 1024\n    %dw1 = matmul"}},
     "no op reads '%before' before '%dw1' overwrites it",
     false},
    {"parameterOfAnotherType",
     Rule::State,
     "fsdp",
     {{"\"layers.1.weight\" : f32[8,8]", "\"layers.1.weight\" : bf16[8,8]"}},
     "'matmul' reads parameter 'layers.1.weight' as '%v1' of type f32; its type in the parameter "
     "table is bf16"},
    {"weightsOfAnotherType",
     Rule::State,
     "saves",
     {{"    %v0 = view %w0 : f32[17,8] params at state 128\n",
       "    %b0 = cast %w0 : bf16[136] params at work 1760\n"
       "    %v0 = view %b0 : bf16[17,8] params at work 1760\n"},
      {"work = 1760", "work = 2288"},
      {"%x = embedding %tokens, %v0 : f32[8,8]", "%e = embedding %tokens, %v0 : bf16[8,8]"},
      {"    %h = matmul", "    %x = cast %e : f32[8,8] activations at work 2032\n    %h = matmul"}},
     "'embedding' reads parameter 'embedding.weight' as '%v0' of type bf16; its type in the "
     "parameter table is f32"},
};

INSTANTIATE_TEST_SUITE_P(Sums, Steps, testing::ValuesIn(kSums), nameOfStep);
INSTANTIATE_TEST_SUITE_P(Protocol, Steps, testing::ValuesIn(kSteps), nameOfStep);
INSTANTIATE_TEST_SUITE_P(Others, Steps, testing::ValuesIn(kOthers), nameOfStep);

TEST(Steps, MayDropWhatThePlanSaysTheyDo) {
  BrokenStep lost = kOthers[3];
  lost.edits.push_back({"    out @left = %more", "    out @left = %more droppable"});
  Plan plan = parsed(test::edited(lost.plan, lost.edits));
  EXPECT_TRUE(verify(plan).empty()) << render(plan, verify(plan)[0]);
  EXPECT_EQ(oracle::findSumBreak(plan), "");
}

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
    EXPECT_EQ(oracle::findSumBreak(plan), "") << name;
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

TEST(Roles, AreComparedWhereTheirRanksAre) {
  for (const char *name : {"mesh", "hsdp"}) {
    Plan plan = splitTwice(name);
    EXPECT_TRUE(verify(plan).empty()) << name << ": " << render(plan, verify(plan)[0]);
    EXPECT_EQ(oracle::findSumBreak(plan), "") << name;
  }
  Plan plan = splitTwice("mesh");
  plan.roles[2].segments[2].ops[4].set(AttrKey::weight_decay, 0.5);
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  EXPECT_NE(findings[0].message.find("roles 'all' and 'rank 1' update block 'layers.0'"),
            std::string::npos)
      << render(plan, findings[0]);
}

TEST(Roles, ChangeCommonStateAlike) {
  Plan plan = split("ddp", 1);
  plan.roles[1].segments[2].ops[4].set(AttrKey::weight_decay, 0.5);
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].rule, Rule::Sum);
  EXPECT_NE(findings[0].message.find("roles 'all' and 'others' update block 'layers.0'"),
            std::string::npos)
      << render(plan, findings[0]);
  EXPECT_FALSE(findings[0].note.empty());
}

TEST(Findings, JudgeArityBeforeOperandsAreNamed) {
  for (const char *op : {"%t = step.begin else(0 = %s) if first : u8[128] step",
                         "%t = adamw %s else(0 = %s) if first : u8[128] step",
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
