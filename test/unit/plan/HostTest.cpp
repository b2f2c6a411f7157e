// Which ops may read cells that the host writes while steps run: verifier and oracle judge plans
// that differ in nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "TestPlans.h"
#include "oracle/Oracle.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

using test::parsed;
using test::planText;
using test::replaced;
using testing::HasSubstr;

constexpr std::string_view kLoad = "    %tokens, %labels, %mask, %positions, %docs, %samples = "
                                   "batch.load %feed {slots = 3} : i32[2,2] data at work 128";
constexpr std::string_view kLoaded = "    %rows = embedding %tokens, %table : f32[4,4] activations "
                                     "at work 256\n";

void isAccepted(const std::string &text) {
  Plan plan = parsed(text);
  test::expectAccepted(plan);
  EXPECT_EQ(oracle::findBreak(plan), "");
}

void isRefused(const std::string &text, std::string_view message, std::string_view ofOracle) {
  Plan plan = parsed(text);
  std::vector<Finding> findings = verify(plan);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].rule, Rule::Host) << render(plan, findings[0]);
  EXPECT_THAT(findings[0].message, HasSubstr(message));
  EXPECT_THAT(oracle::findBreak(plan), HasSubstr(ofOracle));
}

/// The plan 'feed' with more ops after the load of training.
std::string hostWithOps(const std::string &ops) {
  return replaced(planText("feed"), kLoaded, std::string(kLoaded) + ops);
}

/// The plan 'feed' with another load instead of its own.
std::string withLoad(const std::string &before, const std::string &load) {
  return replaced(planText("feed"), kLoad,
                  before + "    %tokens, %labels, %mask, %positions, %docs, %samples = " + load +
                      " : i32[2,2] data at work 128");
}

TEST(Rings, AreReadByLoadsAlone) {
  isAccepted(planText("feed"));
  isRefused(hostWithOps("    %entry = view %feed {offset = 24} : i32[4] data at host 112\n"
                        "    %x = embedding %entry, %table : f32[4,4] activations at work 320\n"),
            "'embedding' reads a part of cell '@feed', which the host may write at any time; only "
            "'batch.load' may read it, and only the whole cell",
            "entry is read while the host may write it");
  isRefused(hostWithOps("    %x = embedding %feed, %table : f32[72,4] activations at work 768\n"),
            "'embedding' reads cell '@feed', which", "feed is read while the host may write it");
  isRefused(replaced(planText("feed"),
                     "embedding %tokens, %table : f32[4,4] activations at work 640",
                     "embedding %feed, %table : f32[72,4] activations at work 640"),
            "reads cell '@eval_feed', which", "feed is read while the host may write it");
}

TEST(Rings, AreLoadedFromAsAWhole) {
  isAccepted(withLoad("    %all = view %feed : i32[3,24] data at host 16\n",
                      "batch.load %all {slots = 3}"));
  isRefused(withLoad("    %entry = view %feed {offset = 24} : i32[1,24] data at host 112\n",
                     "batch.load %entry {slots = 1}"),
            "'batch.load' reads a part of cell '@feed'",
            "entry is read while the host may write it");
  // A view only names bytes; it reads none of them.
  isAccepted(hostWithOps("    %entry = view %feed {offset = 24} : i32[4] data at host 112\n"));
}

/// The kind of a ring tells the host whether it is for steps or for evaluations.
TEST(Rings, AreForStepsOrForEvaluations) {
  std::vector<Finding> findings =
      verify(parsed(replaced(planText("zero"), "cell @feed feed :", "cell @feed eval_feed :")));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].rule, Rule::Host);
  EXPECT_THAT(findings[0].message,
              HasSubstr("segment 'micro' of kind 'train' takes '@feed' of kind 'eval_feed'; it "
                        "needs 'feed'"));
}

TEST(StopFlag, IsReadWhereRanksAgreeOnItAlone) {
  auto withUpdate = [](const std::string &ops) {
    return replaced(planText("feed"), "    %sums = all_reduce", ops + "    %sums = all_reduce");
  };
  isAccepted(withUpdate("    %again = step.pack %step, %ss, %stop {norm_replicated = true} : "
                        "f64[4] step at work 256\n"));
  isRefused(withUpdate("    %table = view %w : f32[8,4] params at state 128\n"
                       "    %x = embedding %stop, %table : f32[1,4] activations at work 256\n"),
            "'embedding' reads cell '@stop', which the host may write at any time; only "
            "'step.pack' may read it, and only the whole cell",
            "stop is read while the host may write it");
}

TEST(StopFlag, EndsAllRanksAfterTheSameStep) {
  isRefused(replaced(planText("feed"), "step.finish %step, %sums,", "step.finish %step, %partial,"),
            "'step.finish' takes '%partial', which is not a sum over all 2 ranks; the ranks could "
            "stop after different steps",
            "partial is not what all ranks have summed");
  isAccepted(replaced(replaced(planText("feed"), "mesh { dp = 2 }", "mesh { dp = 2  tp = 1 }"),
                      "groups { dp = [dp] }", "groups { dp = [dp, tp] }"));
}

} // namespace
} // namespace shardc::plan
