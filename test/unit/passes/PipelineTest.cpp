// The pass table and the pipeline: every pass runs once, in this order; only fusions may be left
// out.
#include "compiler/passes/Pipeline.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::passes {
namespace {

/// The smallest training body: a table lookup, and a projection back.
plan::Plan smallPlan() {
  Result<plan::Plan> plan =
      plan::parse(R"(shardc.plan 2 logical "t"
job { derived.strategy = "optim_grads_params"  derived.num_microbatches = 2 }
mesh { dp = 2 }
groups { dp = [dp] } data dp
unit embedding embedding
block embedding unit embedding numel 128 shard 128 over dp
param "table" : f32[16,8] block embedding at 0 init normal 0.02
role all "" {
  cell @table param of table : f32[16,8] in state for params
  cell @step step : u8[128] in state for step
  cell @stop stop : i32[1] in host for data
  cell @feed feed : i32[4,44] in host for data
  segment micro train body {
    in %step = @step
    in %feed = @feed
    in %table = @table
    %begun = step.begin %step {lr = 0.1  decay_steps = 3} else(0 = %step) if first : u8[128] step
)"
                  "%tokens, %labels, %mask, %positions, %docs, %samples = "
                  "batch.load %feed {slots = 4} : i32[2,4] data, i32[2,4] "
                  "data, f32[2,4] data, i32[2,4] data, i32[2,4] data, i64[2] "
                  "data\n"
                  R"(    %x = embedding %tokens, %table unit embedding : f32[2,4,8] activations
    %n = token_count %mask : f32[1] activations
    %logits = matmul %x, %table {trans_b = true} unit embedding : f32[2,4,16] activations
    %losses, %l = cross_entropy %logits, %labels, %mask {valid_cols = 16} : f32[8] data, f32[8] data
    %summed = loss.add %begun, %losses, %n : u8[128] step
    out @step = %summed
  }
  program { steps 3 { run micro 2 } }
}
)",
                  "t");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  return *plan;
}

std::string findings(const plan::Plan &plan) {
  std::string text;
  for (const plan::Finding &finding : plan::verify(plan))
    text += plan::render(plan, finding) + "\n";
  return text;
}

TEST(PassTable, FlagsAreUniqueKebabCaseAndFindTheirPass) {
  std::set<std::string_view> flags;
  for (PassId id : allPasses()) {
    const PassInfo &info = passInfo(id);
    EXPECT_TRUE(flags.insert(info.flag).second) << info.flag;
    EXPECT_EQ(info.flag.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"), std::string_view::npos)
        << info.flag;
    EXPECT_FALSE(info.doc.empty()) << info.flag;
    EXPECT_EQ(findPass(info.flag), id);
  }
  EXPECT_EQ(findPass("no-such-pass"), std::nullopt);
}

TEST(Pipeline, EveryPassRunsOnceAndLeavesAPlanThatVerifies) {
  plan::Plan plan = smallPlan();
  ASSERT_EQ(findings(plan), "");
  Notes notes;
  PipelineOptions options;
  for (PassId id : allPasses())
    if (isOnRequest(id))
      options.enabled.push_back(id);
  options.after = [](PassId id, const plan::Plan &after) {
    EXPECT_GE(after.level, passInfo(id).level);
    EXPECT_EQ(findings(after), "") << "after " << passInfo(id).flag;
  };
  std::vector<PassTime> times = runPipeline(plan, options, notes);
  std::set<PassId> seen;
  for (const PassTime &time : times)
    EXPECT_TRUE(seen.insert(time.id).second) << passInfo(time.id).flag;
  EXPECT_EQ(seen.size(), allPasses().size());
  EXPECT_EQ(plan.level, plan::Level::Placed);
}

size_t onRequest() { return static_cast<size_t>(std::ranges::count_if(allPasses(), isOnRequest)); }

TEST(Pipeline, AFusionCanBeLeftOut) {
  for (PassId id : allPasses()) {
    if (!isOptional(id))
      continue;
    plan::Plan plan = smallPlan();
    Notes notes;
    PipelineOptions options;
    options.disabled = {id};
    std::vector<PassTime> times = runPipeline(plan, options, notes);
    EXPECT_EQ(times.size(), allPasses().size() - onRequest() - 1);
    EXPECT_EQ(findings(plan), "") << "without " << passInfo(id).flag;
  }
}

TEST(Pipeline, WhatRunsOnRequestIsLeftOutOtherwise) {
  for (PassId id : allPasses()) {
    if (!isOnRequest(id))
      continue;
    plan::Plan plan = smallPlan();
    Notes notes;
    EXPECT_EQ(runPipeline(plan, {}, notes).size(), allPasses().size() - onRequest());
    EXPECT_EQ(findings(plan), "") << "without " << passInfo(id).flag;
  }
}

} // namespace
} // namespace shardc::passes
