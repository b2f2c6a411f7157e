// The fields of Job.def in the text of a plan: they are read as they were printed, have one
// default, and refuse values outside their range.
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::parseError;

std::vector<JobField> allFields() {
  std::vector<JobField> fields;
  for (size_t i = 0; i < kJobFields; ++i)
    fields.push_back(static_cast<JobField>(i));
  return fields;
}

/// A number in the range.
double numberIn(const JobRange &range) {
  switch (range.kind) {
  case JobRange::Kind::AtLeast:
    return range.low + 3;
  case JobRange::Kind::Between:
  case JobRange::Kind::HalfOpen:
    return range.low + (range.high - range.low) / 4;
  case JobRange::Kind::Any:
  case JobRange::Kind::Positive:
    break;
  }
  return 3.5;
}

/// A value other than the field's default.
JobValue otherValue(JobField field) {
  const JobFieldInfo &about = jobInfo(field);
  JobValue value = Job().value(field);
  if (auto *flag = std::get_if<bool>(&value))
    *flag = !*flag;
  else if (auto *whole = std::get_if<int64_t>(&value))
    *whole =
        static_cast<int64_t>(numberIn(about.range)) - (*whole == numberIn(about.range) ? 1 : 0);
  else if (auto *number = std::get_if<double>(&value))
    *number = numberIn(about.range);
  else if (auto *text = std::get_if<std::string>(&value))
    *text = about.words.empty() ? "a \"text\"\n" : about.words[about.words[0] == *text ? 1 : 0];
  else
    value = about.words.empty() ? std::vector<std::string>{"a", "b, \"c\""}
                                : std::vector<std::string>(about.words.begin(), about.words.end());
  return value;
}

std::string textOf(const std::string &entries) {
  return "shardc.plan 2 logical \"t\"\njob { " + entries + " }\n";
}

std::string errorOf(const std::string &entries) {
  std::string error = parseError(textOf(entries));
  return error.substr(0, error.find('\n'));
}

TEST(Job, EveryFieldComesBack) {
  for (JobField field : allFields()) {
    Plan plan;
    JobValue value = otherValue(field);
    ASSERT_NE(value, Job().value(field)) << jobInfo(field).path;
    plan.job.put(field, value);
    std::string text = print(plan);
    EXPECT_NE(text.find(fmt::format("\n  {} = ", jobInfo(field).path)), std::string::npos) << text;
    Plan again = parsed(text);
    EXPECT_EQ(again.job.value(field), value) << text;
    EXPECT_EQ(again.job, plan.job) << text;
    EXPECT_EQ(print(again), text);
  }
}

TEST(Job, AllFieldsTogetherComeBack) {
  Plan plan;
  for (JobField field : allFields())
    plan.job.put(field, otherValue(field));
  plan.job.environment = {{"A", "1"}, {"B C", ""}};
  Plan again = parsed(print(plan));
  EXPECT_EQ(again.job.entries().size(), kJobFields + 2);
  EXPECT_EQ(again.job, plan.job);
}

TEST(Job, WhatAPlanDoesNotSayHasTheDefaultAndIsNotPrinted) {
  Plan plan = parsed(textOf(""));
#define JOB_FIELD(section, type, member, ...)                                                      \
  EXPECT_FALSE(plan.job.has(JobField::section##_##member)) << #member;                             \
  EXPECT_TRUE(plan.job.section.member == Job().section.member) << #member;
#include "runtime/plan/Job.def"
  EXPECT_TRUE(plan.job.entries().empty());
  EXPECT_NE(print(plan).find("job {\n}\n"), std::string::npos);
  EXPECT_EQ(plan.job.rng.seed, 1234);
  EXPECT_EQ(plan.job.ddp.ncclUb, false);
  EXPECT_EQ(plan.job.dist.distributedTimeoutMinutes, 10);
  EXPECT_EQ(plan.job.optimizer.optimizer, Job::OptimizerKind::Adam);
  EXPECT_EQ(plan.job.model.recomputeGranularity, std::nullopt);
  EXPECT_EQ(plan.job.model.recomputeModules, std::vector{Job::RecomputeModule::CoreAttn});
}

TEST(Job, ADefaultThatAPlanSaysIsPrinted) {
  Plan plan = parsed(textOf("rng.seed = 1234"));
  EXPECT_TRUE(plan.job.has(JobField::rng_seed));
  EXPECT_NE(print(plan).find("  rng.seed = 1234\n"), std::string::npos);
  plan.job.unset(JobField::rng_seed);
  EXPECT_FALSE(plan.job.has(JobField::rng_seed));
  EXPECT_EQ(plan.job, Job());
}

/// A field that code sets is printed, and comparisons see it.
TEST(Job, AMemberThatDiffersFromItsDefaultIsPrinted) {
  Plan plan;
  plan.job.train.trainIters = 7;
  EXPECT_NE(print(plan).find("  train.train_iters = 7\n"), std::string::npos);
  EXPECT_NE(plan.job, Job());
}

TEST(Job, DefaultsThatARangeExcludesStandForNothing) {
  for (JobField field : allFields()) {
    JobValue value = Job().value(field);
    Job job;
    Job::Fault fault = job.set(jobInfo(field).path, value);
    bool isNothing = fault == Job::Fault::Range || fault == Job::Fault::Word;
    EXPECT_TRUE(isNothing || fault == Job::Fault::None) << jobInfo(field).path;
    EXPECT_EQ(job.has(field), !isNothing) << jobInfo(field).path;
  }
}

TEST(Job, PathsAndMembersAreThereOnce) {
  std::set<std::string_view> paths, members;
  for (JobField field : allFields()) {
    EXPECT_TRUE(paths.insert(jobInfo(field).path).second) << jobInfo(field).path;
    EXPECT_TRUE(members.insert(jobInfo(field).member).second) << jobInfo(field).member;
  }
}

TEST(Job, EveryFieldRefusesAnotherType) {
  for (JobField field : allFields()) {
    std::string path(jobInfo(field).path);
    bool isFlag = jobInfo(field).type == "true or false";
    std::string error = errorOf(path + (isFlag ? " = 1" : " = true"));
    EXPECT_NE(
        error.find(fmt::format("error: option '{}' takes {}, found {} [plan-syntax]", path,
                               jobInfo(field).type, isFlag ? "a whole number" : "true or false")),
        std::string::npos)
        << error;
  }
}

TEST(Job, EveryRangeIsHeld) {
  unsigned count = 0;
  for (JobField field : allFields()) {
    const JobRange &range = jobInfo(field).range;
    if (range.kind == JobRange::Kind::Any)
      continue;
    ++count;
    std::string error = errorOf(fmt::format("{} = {}", jobInfo(field).path, range.low - 1));
    EXPECT_NE(error.find(fmt::format("; it needs to be {} [plan-limit]", range.text())),
              std::string::npos)
        << error;
  }
  EXPECT_GT(count, 50u);
}

TEST(Job, EveryEnumerationRefusesOtherWords) {
  unsigned count = 0;
  for (JobField field : allFields()) {
    if (jobInfo(field).words.empty())
      continue;
    ++count;
    bool isList = std::holds_alternative<std::vector<std::string>>(Job().value(field));
    std::string error =
        errorOf(fmt::format("{} = {}", jobInfo(field).path, isList ? "[\"so\"]" : "\"so\""));
    EXPECT_NE(error.find(fmt::format("error: 'so' is not a value of '{}'; it has {}",
                                     jobInfo(field).path, jobInfo(field).words[0])),
              std::string::npos)
        << error;
  }
  EXPECT_GT(count, 15u);
}

struct Wrong {
  const char *entries, *error;
};

TEST(Job, RefusesWithTheReasonAtTheNarrowestPlace) {
  constexpr Wrong kCases[] = {
      {"train.train_iter = 1", "2:7: error: unknown option 'train.train_iter' in 'job'; did you "
                               "mean 'train.train_iters'? [plan-name]"},
      {"Train.Train-Iters = 1", "2:7: error: unknown option 'Train.Train-Iters' in 'job'; did you "
                                "mean 'train.train_iters'? [plan-name]"},
      {"speed = 1", "2:7: error: unknown option 'speed' in 'job' [plan-name]"},
      {"env. = \"1\"", "2:7: error: unknown option 'env.' in 'job' [plan-name]"},
      {"\"a\\x07\" = 1", "2:7: error: unknown option 'a\\x07' in 'job' [plan-name]"},
      {"rng.seed = 1 rng.seed = 1", "2:20: error: option 'rng.seed' is declared twice [plan-name]"},
      {"env.A = \"1\" env.A = \"2\"", "2:19: error: option 'env.A' is declared twice [plan-name]"},
      {"env.A = 1",
       "2:15: error: option 'env.A' takes a string, found a whole number [plan-syntax]"},
      {"rng.seed = 1.5",
       "2:18: error: option 'rng.seed' takes a whole number, found a number [plan-syntax]"},
      {"rng.seed = \"1\"",
       "2:18: error: option 'rng.seed' takes a whole number, found a string [plan-syntax]"},
      {"dataset.blend = \"a\"", "2:23: error: option 'dataset.blend' takes a list of strings, "
                                "found a string [plan-syntax]"},
      {"rng.seed = -1",
       "2:18: error: option 'rng.seed' is -1; it needs to be at least 0 [plan-limit]"},
      {"optimizer.lr = -1e-3",
       "2:22: error: option 'optimizer.lr' is -0.001; it needs to be at least 0 [plan-limit]"},
      {"optimizer.lr = nan",
       "2:22: error: option 'optimizer.lr' is nan; it needs to be at least 0 [plan-limit]"},
      {"optimizer.adam_beta1 = 1",
       "2:30: error: option 'optimizer.adam_beta1' is 1; it needs to be "
       "at least 0 and below 1 [plan-limit]"},
      {"model.hidden_dropout = 2",
       "2:30: error: option 'model.hidden_dropout' is 2; it needs to be "
       "between 0 and 1 [plan-limit]"},
      {"dist.distributed_timeout_minutes = 0",
       "2:42: error: option 'dist.distributed_timeout_minutes' is 0; it needs to be greater than 0 "
       "[plan-limit]"},
      {"model.recompute_method = \"blocks\"", "2:32: error: 'blocks' is not a value of "
                                              "'model.recompute_method'; it has uniform|block "
                                              "[plan-name]"},
      {"derived.wire = \"f31\"",
       "2:22: error: 'f31' is not a value of 'derived.wire'; it has "
       "f64|f32|bf16|f16|f8e4m3|f8e5m2|i64|i32|i16|i8|u16|u8|bool|nf4x64|nf4x512 [plan-name]"},
  };
  for (const Wrong &wrong : kCases)
    EXPECT_EQ(errorOf(wrong.entries), std::string("test.plan:") + wrong.error);
}

TEST(Job, WholeNumbersAreTakenForNumbers) {
  EXPECT_EQ(parsed(textOf("optimizer.lr = 1")).job.optimizer.lr, 1.0);
  EXPECT_NE(print(parsed(textOf("optimizer.lr = 1"))).find("optimizer.lr = 1.0\n"),
            std::string::npos);
}

TEST(Job, ARefusedValueChangesNothing) {
  Job job;
  EXPECT_EQ(job.set("rng.seed", int64_t{5}), Job::Fault::None);
  EXPECT_EQ(job.set("rng.seed", int64_t{-5}), Job::Fault::Range);
  EXPECT_EQ(job.set("model.recompute_modules", std::vector<std::string>{"mlp", "so"}),
            Job::Fault::Word);
  EXPECT_EQ(job.entries(), (std::vector<Job::Entry>{{"rng.seed", int64_t{5}}}));
}

} // namespace
} // namespace shardc::plan
