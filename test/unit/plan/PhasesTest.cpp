// Jobs with several plans: their text, which plan comes next, and which plans can follow each
// other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {
namespace {

using testing::HasSubstr;

/// Steps of `samples` samples up to step `last`, after `before` samples of earlier plans.
Plan phase(int64_t samples, int64_t before, int64_t last) {
  Plan plan = test::parsed(test::planText("zero"));
  plan.job.put(JobField::derived_stepSamples, samples);
  plan.job.put(JobField::derived_samplesBefore, before);
  for (ProgramNode &node : plan.roles[0].program)
    if (node.kind == ProgramNode::Steps)
      node.count = last;
  return plan;
}

/// A job with batches of 4, 8 and 12 samples.
std::vector<Plan> job() { return {phase(4, 0, 6), phase(8, 24, 9), phase(12, 48, 15)}; }

TEST(Phases, FollowEachOther) {
  std::vector<Plan> plans = job();
  EXPECT_TRUE(checkPhases(plans).isOk()) << checkPhases(plans).message();
  EXPECT_TRUE(checkPhases(std::span(plans).first(1)).isOk());
  EXPECT_EQ(lastStepOf(plans[1]), 9);
  EXPECT_EQ(batchSizesOf(plans[1].job, /*isEval=*/false).global, 8);
}

TEST(Phases, SamplesSayWhichOneIsNext) {
  std::vector<Plan> plans = job();
  const std::pair<int64_t, size_t> wanted[] = {{0, 0},  {23, 0}, {24, 1},  {47, 1},
                                               {48, 2}, {60, 2}, {1000, 2}};
  for (auto [samples, index] : wanted)
    EXPECT_EQ(phaseAfter(plans, samples), index) << samples;
}

TEST(Phases, StepsSayHowManySamplesTheyTake) {
  std::vector<Plan> plans = job();
  const std::pair<int64_t, int64_t> wanted[] = {{0, 0},  {5, 20},  {6, 24},  {7, 32},
                                                {9, 48}, {10, 60}, {15, 120}};
  for (auto [steps, samples] : wanted)
    EXPECT_EQ(samplesOfSteps(plans, steps), samples) << steps;
}

TEST(Phases, WhatCannotFollowIsRefused) {
  auto problem = [](const std::function<void(std::vector<Plan> &)> &edit) {
    std::vector<Plan> plans = job();
    edit(plans);
    Status status = checkPhases(plans);
    EXPECT_FALSE(status.isOk());
    return status.isOk() ? "" : status.message();
  };
  EXPECT_THAT(problem([](auto &plans) { plans.erase(plans.begin()); }),
              HasSubstr("the first plan begins after 24 samples; those of the steps before are"));
  EXPECT_THAT(
      problem([](auto &plans) { plans.erase(plans.begin() + 1); }),
      HasSubstr("plan 2 of 2 cannot follow: it begins after 48 samples, and the plan before "
                "it ends after 24"));
  EXPECT_THAT(problem([](auto &plans) { std::swap(plans[1], plans[2]); }), HasSubstr("48 samples"));
  EXPECT_THAT(problem([](auto &plans) { plans[0] = phase(4, 0, INT64_MAX); }),
              HasSubstr("the plan before it has no steps"));
  const std::string otherState = "plan 3 of 3 cannot follow: its state is not that of";
  EXPECT_THAT(problem([](auto &plans) { plans[2].roles[0].cells[1].place.offset += 16; }),
              HasSubstr(otherState));
  EXPECT_THAT(problem([](auto &plans) { plans[2].roles[0].arenaBytes[0] += 16; }),
              HasSubstr(otherState));
  EXPECT_THAT(problem([](auto &plans) { plans[2].mesh[0].size = 2; }), HasSubstr(otherState));
  EXPECT_THAT(problem([](auto &plans) { plans[2].roles.emplace_back(); }), HasSubstr(otherState));
}

TEST(Phases, StandInOneTextOneAfterTheOther) {
  std::string text;
  for (const Plan &plan : job())
    text += print(plan, "// a page\n");
  EXPECT_EQ(plansOf(text).size(), 3u);
  Result<std::vector<Plan>> plans = parseJob(text, "job.plan");
  ASSERT_TRUE(plans.isOk()) << plans.status().message();
  std::string again;
  for (const Plan &plan : *plans)
    again += print(plan, "// a page\n");
  EXPECT_EQ(again, text);
  EXPECT_EQ(plansOf(print(job()[0])).size(), 1u);
  EXPECT_EQ(plansOf("").size(), 1u) << "which is no plan";
  EXPECT_EQ(plansOf("\n// shardc.plan 2\nshardc.plan 2 logical \"a\"\n").size(), 1u);
  EXPECT_EQ(plansOf("\nshardc.plan 2 logical \"a\"\nshardc.plan 2 logical \"b\"").size(), 2u);
}

TEST(Phases, ErrorsHaveTheirLineInTheText) {
  std::string first = print(job()[0]);
  std::string text = first + "shardc.plan 2 placed \"x\"\nnonsense\n";
  Result<std::vector<Plan>> plans = parseJob(text, "job.plan");
  ASSERT_FALSE(plans.isOk());
  auto lines = std::ranges::count(first, '\n');
  EXPECT_THAT(plans.status().message(), HasSubstr(fmt::format("job.plan:{}:1: error:", lines + 2)));
}

} // namespace
} // namespace shardc::plan
