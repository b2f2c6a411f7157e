// The verifier against the oracle on mutations; `plan-oracle` does the same with more of them.
#include <algorithm>

#include <gtest/gtest.h>

#include "Compare.h"
#include "TestPlans.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan {
namespace {

constexpr int64_t kMutations = 150;

class Agreement : public testing::TestWithParam<const char *> {};

TEST_P(Agreement, OfVerifierAndOracleOnMutations) {
  oracle::Comparison comparison;
  oracle::compare(test::parsed(test::planText(GetParam())), {.count = kMutations, .seed = 20},
                  comparison);
  for (const std::string &text : comparison.disagreements)
    ADD_FAILURE() << text;
  EXPECT_EQ(comparison.total(), kMutations);
}

INSTANTIATE_TEST_SUITE_P(Plans, Agreement,
                         testing::Values("fsdp", "zero", "ddp", "slots", "roles", "mesh", "every",
                                         "exchange", "parts", "starts", "split", "feed", "saves",
                                         "hsdp", "hybrid", "fsdp2", "tensor", "vocab", "ring"));

TEST(Oracle, FindsNothingInPlansThatAreRight) {
  for (const char *name :
       {"fsdp", "zero", "ddp", "slots", "roles", "mesh", "every", "exchange", "parts", "starts",
        "split", "feed", "saves", "hsdp", "hybrid", "fsdp2", "tensor", "vocab", "ring"})
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

/// The head begins its second sum over all ranks when its first one has ended; the tail reads the
/// first one when its second one has ended.
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

TEST(Oracle, SeesABlockTakenForAnotherOneBeforeItIsNamed) {
  auto withBlock = [](const std::string &block) {
    return test::parsed(
        "shardc.plan 2 placed \"late\"\nmesh { dp = 2 }\ngroups { dp = [dp] } data dp\n"
        "channel gather group dp\nunit a\nunit b\n"
        "block a unit a numel 32 shard 16 over dp\nblock b unit b numel 32 shard 16 over dp\n"
        "param \"a\" : f32[4,8] block a at 0 init zeros\n"
        "param \"b\" : f32[4,8] block b at 0 init zeros\n"
        "role all \"w\" {\n  arenas { state = 0 work = 512 sym = 0 host = 0 }\n  segment s {\n"
        "    %m = fill : f32[16] optimizer_state at work 0\n"
        "    %w = cast %m : f32[16] params at work 64\n"
        "    %W = all_gather %w {block = 0} channel gather unit a : f32[32] params at "
        "work "
        "128\n"
        "    %ss = sum_squares %m {block = " +
        block + "} : f64[1] step at work 256\n  }\n  program { run s }\n}\n");
  };
  EXPECT_EQ(oracle::findBreak(withBlock("0")), "");
  EXPECT_TRUE(verify(withBlock("0")).empty());
  EXPECT_NE(oracle::findBreak(withBlock("1")), "");
  EXPECT_FALSE(verify(withBlock("1")).empty());
}

TEST(Oracle, SeesReadsOfPadding) {
  Plan plan = test::parsed(test::planText("zero"));
  auto withRead = [&](ValueId whole) {
    Plan changed = plan;
    changed.roles[0].arenaBytes[1] += 384;
    Segment &micro = changed.roles[0].segments[2];
    Value &read = micro.values.emplace_back();
    read.name = "read", read.type = Type::of(DType::F32, {96});
    read.place = {true, Arena::Work, 1152, 0};
    read.def = static_cast<uint32_t>(micro.ops.size());
    Op &op = micro.ops.emplace_back();
    op.kind = OpKind::Gelu;
    op.operands = {whole};
    op.results = {static_cast<ValueId>(micro.values.size() - 1)};
    return oracle::findBreak(changed);
  };
  const std::vector<Value> &values = plan.roles[0].segments[2].values;
  for (std::string_view whole : {"G", "W"}) {
    auto at = std::ranges::find(values, whole, &Value::name);
    EXPECT_NE(withRead(static_cast<ValueId>(at - values.begin())).find("reads padding"),
              std::string::npos)
        << whole;
  }
}

} // namespace
} // namespace shardc::plan
