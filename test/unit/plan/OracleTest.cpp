// Compares verifier and oracle on mutations; `plan-oracle` does so with more of them.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "Compare.h"
#include "TestPlans.h"
#include "runtime/verify/Verify.h"
#include "test/unit/support/Long.h"

namespace shardc::plan {
namespace {

class Agreement : public testing::TestWithParam<const char *> {};

/// Sanitizers run only the verifier, since the comparison with the oracle does not depend on them.
TEST_P(Agreement, OfVerifierAndOracleOnMutations) {
  int64_t count = shardc::test::isLong() ? 150 : 20;
  oracle::Comparison comparison;
  oracle::compare(test::parsed(test::planText(GetParam())),
                  {.count = count, .seed = 20, .asksOracle = !shardc::test::kIsSanitized},
                  comparison);
  for (const std::string &text : comparison.disagreements)
    ADD_FAILURE() << text;
  EXPECT_EQ(comparison.total(), count);
}

INSTANTIATE_TEST_SUITE_P(Plans, Agreement,
                         testing::Values("fsdp", "zero", "ddp", "slots", "roles", "mesh", "every",
                                         "exchange", "parts", "starts", "split", "feed", "saves",
                                         "hsdp", "hybrid", "fsdp2", "tensor", "vocab", "ring",
                                         "runs", "router", "remainders", "products", "offload"));

TEST(Oracle, FindsNothingInPlansThatAreRight) {
  for (const char *name :
       {"fsdp",   "zero",   "ddp",   "slots", "roles",  "mesh",       "every",    "exchange",
        "parts",  "starts", "split", "feed",  "saves",  "hsdp",       "hybrid",   "fsdp2",
        "tensor", "vocab",  "ring",  "runs",  "router", "remainders", "products", "offload"})
    EXPECT_EQ(oracle::findBreak(test::parsed(test::planText(name))), "") << name;
}

TEST(Oracle, SeesAMissingWaitAStuckRankAndAWrongOrder) {
  Plan plan = test::parsed(test::planText("slots"));
  plan.roles[0].segments[1].ops[6].waits.clear();
  EXPECT_NE(oracle::findBreak(plan), "");
  plan = test::parsed(test::planText("roles"));
  plan.roles[1].segments[0].ops[3].pred = Pred::Always;
  EXPECT_NE(oracle::findBreak(plan), "");
  plan = test::parsed(test::planText("fsdp"));
  plan.streams.push_back({"other"});
  plan.roles[0].segments[1].ops[2].stream = static_cast<StreamId>(plan.streams.size() - 1);
  plan.roles[0].segments[1].ops[7].waits = {2};
  EXPECT_NE(oracle::findBreak(plan).find("meet in different collectives"), std::string::npos);
}

/// The head begins its second sum over all ranks when its first one has ended. The tail reads the
/// first sum when its second one has ended.
TEST(Oracle, SeesThatACollectiveEndsOnOneRankBeforeAnother) {
  auto plan = [](const char *waits) {
    std::string text = test::planText("roles");
    auto put = [&](std::string_view from, const std::string &to) {
      size_t at = text.find(from);
      ASSERT_NE(at, std::string::npos) << from;
      text.replace(at, from.size(), to);
    };
    put("channel misc group", "channel other group all stream reduce\nchannel misc group");
    put("%own channel misc if last after %own", "%own channel other after %own, %sum");
    put("%u channel misc if last after %u", "%u channel other after %u");
    put("    %own = all_reduce %sum channel reduce after %sum", "#");
    text.erase(text.find('#'), text.find('\n', text.find('#')) + 1 - text.find('#'));
    put("add %own, %own after %own", std::string("add %sum, %sum after ") + waits);
    return test::parsed(text);
  };
  EXPECT_EQ(oracle::findBreak(plan("%sum, %last")), "");
  EXPECT_TRUE(verify(plan("%sum, %last")).empty());
  EXPECT_NE(oracle::findBreak(plan("%last")).find("finds other bytes"), std::string::npos);
  EXPECT_FALSE(verify(plan("%last")).empty());
}

TEST(Oracle, SeesARankStuckAfterALoad) {
  Plan plan = test::parsed(test::planText("starts"));
  plan.roles[1].program[0].kind = ProgramNode::Run;
  EXPECT_NE(oracle::findBreak(plan).find("is stuck"), std::string::npos);
}

TEST(Oracle, SeesRanksThatMeetInDifferentSteps) {
  Plan plan = test::parsed(test::planText("starts"));
  std::swap(plan.roles[0].program[1], plan.roles[0].program[2]);
  EXPECT_NE(oracle::findBreak(plan).find("meet in different steps"), std::string::npos);
  EXPECT_FALSE(verify(plan).empty());
}

TEST(Oracle, SeesABackgroundSegmentThatEndsBeforeNothing) {
  Plan plan = test::parsed(test::planText("parts"));
  plan.roles[0].program[1].children.erase(plan.roles[0].program[1].children.begin() + 1);
  EXPECT_NE(oracle::findBreak(plan).find("ends before what no step runs"), std::string::npos);
  EXPECT_FALSE(verify(plan).empty());
}

TEST(Oracle, SeesCellsOfTheHostThatOthersFillOrThatAreForOthers) {
  auto withKind = [](const char *name, std::string_view cell, CellKind kind) {
    Plan plan = test::parsed(test::planText(name));
    std::ranges::find(plan.roles[0].cells, cell, &Cell::name)->kind = kind;
    EXPECT_FALSE(verify(plan).empty()) << name;
    return oracle::findBreak(plan);
  };
  EXPECT_NE(withKind("saves", "snap.layer", CellKind::EvalFeed).find("goes elsewhere"),
            std::string::npos);
  EXPECT_NE(withKind("fsdp2", "feed", CellKind::EvalFeed).find("batches of another series"),
            std::string::npos);
}

TEST(Oracle, SeesOpsInPlaceThatWouldKeepAnotherValue) {
  // With one microbatch, the op is never skipped, but it still has its operand's buffer.
  auto withTie = [](const std::string &value) {
    std::string text = test::replaced(test::planText("zero"), "run micro 3", "run micro");
    return test::parsed(
        test::replaced(text, "%summed = loss.add %begun, %y, %n",
                       "%summed = loss.add %begun, %y, %n else(0 = " + value + ") if last"));
  };
  EXPECT_EQ(oracle::findBreak(withTie("%begun")), "");
  EXPECT_TRUE(verify(withTie("%begun")).empty());
  EXPECT_NE(oracle::findBreak(withTie("%step")), "");
  EXPECT_EQ(verify(withTie("%step")).at(0).rule, Rule::Tie);
}

/// Two ranks, each with its own role, exchange rows there and back, with the operands `head` and
/// `tail`. The counts of the tail have the given type.
Plan exchangingRows(const std::string &head, const std::string &tail = "%y, %n",
                    const std::string &countsOfTail = "i32[2,2]") {
  auto role = [](const std::string &name, int rank, const std::string &rows,
                 const std::string &counts) {
    return fmt::format(R"(
role {0} "one rank" where {{ ep = {1} to {1} }} {{
  arenas {{ state = 0  work = 3072  sym = 0  host = 0 }}
  segment s {{
    %ids = fill : i32[4,2] data at work 0
    %x = fill : f32[4,4] activations at work 256
    %n, %p = make_runs %ids {{bound = 8}} : {3} data at work 512, i32[4,2] data at work 768
    %o, %q = make_runs %ids {{bound = 8}} : {3} data at work 1024, i32[4,2] data at work 1280
    %m = all_to_all %n channel ep : {3} data at work 1536
    %y = dispatch %x, %p : f32[8,4] rows %n activations at work 1792
    %z = all_to_all {2} channel ep : f32[8,4] rows %m activations at work 2048
    %g = gelu %z : f32[8,4] rows %m activations at work 2304
    %h = all_to_all %g, %m channel ep : f32[8,4] rows %n activations at work 2560
    %t = combine %h, %p : f32[4,4] activations at work 2816
  }}
  program {{ run s }}
}})",
                       name, rank, rows, counts);
  };
  return test::parsed("shardc.plan 2 placed \"rows\"\nmesh { ep = 2 }\ngroups { ep = [ep] }\n"
                      "channel ep group ep" +
                      role("head", 0, head, "i32[2,2]") + role("tail", 1, tail, countsOfTail) +
                      "\n");
}

/// If all members exchange rows without counts, all rows are exchanged.
TEST(Oracle, SeesRowsWithoutTheCountsOfOthers) {
  for (const char *rows : {"%y, %n", "%y"}) {
    Plan plan = exchangingRows(rows, rows);
    EXPECT_EQ(oracle::findBreak(plan), "") << rows;
    for (const Finding &finding : verify(plan))
      ADD_FAILURE() << finding.message;
  }
  for (const Plan &plan : {exchangingRows("%y"), exchangingRows("%y, %n", "%y, %n", "i32[4,1]")}) {
    EXPECT_NE(oracle::findBreak(plan).find("meet in different collectives"), std::string::npos);
    EXPECT_EQ(verify(plan).at(0).rule, Rule::Collective);
  }
}

} // namespace
} // namespace shardc::plan
