// Tests the breakdown of a traced step: time by op, exposed communication, gaps, and slowdown by
// overlap.
#include "runtime/trace/Breakdown.h"

#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Text.h"
#include "runtime/trace/ChromeTrace.h"

namespace shardc::trace {
namespace {

constexpr int64_t kMs = 1'000'000;

Span span(const char *stream, const char *label, int64_t beginMs, int64_t endMs) {
  return {0, stream, label, "kernel", beginMs * kMs, endMs * kMs};
}

/// Ops by label. The matmuls of all layers count as alike.
const TracedOps kOps = {
    {"micro: matmul %l0.y (a.recipe:1)", {"matmul", false, 1}},
    {"micro: matmul %l1.y", {"matmul", false, 1}},
    {"micro: add %x", {"add", false, 2}},
    {"micro: add %y", {"add", false, 3}},
    {"micro: all_gather %W", {"all_gather", true, 4}},
    {"micro: reduce_scatter %g", {"reduce_scatter", true, 5}},
    {"micro: matmul %l0.fc1", {"matmul", false, 6}},
    {"micro: matmul %l1.fc1", {"matmul", false, 6}},
    {"micro: matmul %l2.fc1", {"matmul", false, 6}},
    {"micro: matmul %l13.fc1", {"matmul", false, 6}},
};

const OpTime &timeOf(const Breakdown &breakdown, std::string_view op) {
  static const OpTime kNone = {};
  for (const OpTime &time : breakdown.ops)
    if (time.op == op)
      return time;
  return kNone;
}

TEST(Breakdown, CountsTimeByOpForOneStep) {
  std::vector<Span> spans = {span("compute", "micro: matmul %l0.y (a.recipe:1)", 0, 4),
                             span("compute", "micro: matmul %l1.y", 4, 10),
                             span("compute", "micro: add %x", 10, 12)};
  Breakdown b = breakDown(spans, 0, 2, kOps);
  EXPECT_DOUBLE_EQ(timeOf(b, "matmul").ms, 5);
  EXPECT_EQ(timeOf(b, "matmul").count, 1);
  EXPECT_DOUBLE_EQ(timeOf(b, "add").ms, 1);
  EXPECT_EQ(b.ops.front().op, "matmul");
  EXPECT_DOUBLE_EQ(b.step, 6);
}

TEST(Breakdown, TellsExposedTransfersFromHiddenOnesAndGaps) {
  std::vector<Span> spans = {span("gather", "micro: all_gather %W", 0, 6),
                             span("compute", "micro: add %x", 2, 5),
                             span("compute", "micro: add %y", 8, 10)};
  Breakdown b = breakDown(spans, 0, 1, kOps);
  EXPECT_DOUBLE_EQ(b.computing, 5);
  EXPECT_DOUBLE_EQ(b.exposed, 3);
  EXPECT_DOUBLE_EQ(b.gaps, 2);
}

TEST(Breakdown, ContentionIsWhatLikesWithoutATransferDoNotTake) {
  std::vector<Span> spans = {span("compute", "micro: matmul %l0.fc1", 0, 2),
                             span("compute", "micro: matmul %l1.fc1", 2, 5),
                             span("reduce", "micro: reduce_scatter %g", 3, 4),
                             span("compute", "micro: matmul %l2.fc1", 5, 7),
                             span("compute", "micro: matmul %l13.fc1", 7, 9)};
  Breakdown b = breakDown(spans, 0, 1, kOps);
  EXPECT_DOUBLE_EQ(b.contention, 1);
  EXPECT_DOUBLE_EQ(b.uncompared, 0);
  // Too few similar ops ran without a transfer.
  spans.pop_back();
  b = breakDown(spans, 0, 1, kOps);
  EXPECT_DOUBLE_EQ(b.contention, 0);
  EXPECT_DOUBLE_EQ(b.uncompared, 3);
}

TEST(Breakdown, SummaryHasTenRowsThatAddUp) {
  TracedOps ops = {{"gather", {"all_gather", true, 0}}};
  std::vector<std::string> names;
  std::vector<Span> spans = {span("gather", "gather", 0, 20)};
  for (int i = 0; i < 12; ++i)
    names.push_back(fmt::format("op{}", i));
  for (int i = 0; i < 12; ++i) { // each overlaps the one before by 1 ms
    ops[names[i]] = {names[i], false, static_cast<uint32_t>(i + 1)};
    spans.push_back(span(i % 2 ? "compute" : "other", names[i].c_str(), 10 * i + 5, 10 * i + 16));
  }
  spans.push_back(span("compute", "op3", 130, 140));
  Breakdown b = breakDown(spans, 0, 1, ops);
  double own = 0;
  for (const OpTime &op : b.ops)
    own += op.ownMs;
  EXPECT_DOUBLE_EQ(own, b.computing);
  EXPECT_DOUBLE_EQ(b.computing + b.exposed + b.gaps, b.step);
  std::string text = toSummary(b);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 12); // a head, ten rows, and their sum
  EXPECT_THAT(text, testing::HasSubstr("5 other ops"));
  EXPECT_THAT(text, testing::HasSubstr("step                           140.000 100.00%"));
}

/// Ops are alike if they do the same on the same sizes; the names of their values do not matter.
TEST(TracedOps, OpsOfTheSameSizesAreAlike) {
  Result<plan::Plan> plan =
      plan::parse("shardc.plan 2 logical \"t\"\nrole r \"\" {\n  segment micro train body {\n"
                  "    %x = fill : f32[4,8] activations\n"
                  "    %w = fill : f32[16,8] params\n"
                  "    %v = fill : f32[8,16] params\n"
                  "    %a = matmul %x, %w {trans_b = true} : f32[4,16] activations\n"
                  "    %fc1 = matmul %x, %w {trans_b = true} : f32[4,16] activations\n"
                  "    %l1.a = matmul %fc1, %v {trans_b = true} : f32[4,8] activations\n"
                  "    %b = matmul %x, %w {trans_b = true} : f32[4,16] activations backward "
                  "recomputed\n  }\n}\n",
                  "t.plan");
  ASSERT_TRUE(plan.isOk()) << plan.status().message();
  TracedOps ops = tracedOps(*plan);
  EXPECT_EQ(ops["micro: matmul %a"].op, "matmul");
  EXPECT_EQ(ops["micro: matmul %a"].likes, ops["micro: matmul %fc1"].likes);
  EXPECT_NE(ops["micro: matmul %a"].likes, ops["micro: matmul %l1.a"].likes);
  EXPECT_NE(ops["micro: matmul %a"].likes, ops["micro: matmul %b"].likes);
  EXPECT_FALSE(ops["micro: fill %x"].isTransfer);
}

TEST(Breakdown, LooksAtOneRankAlone) {
  std::vector<Span> spans = {span("compute", "micro: add %x", 0, 2),
                             span("compute", "micro: add %x", 0, 9)};
  spans[1].rank = 1;
  EXPECT_DOUBLE_EQ(breakDown(spans, 0, 1, kOps).step, 2);
  EXPECT_TRUE(breakDown({}, 0, 1, kOps).ops.empty());
}

TEST(ChromeTrace, NamesStreamsAndEscapesTexts) {
  std::vector<Span> spans = {span("compute", "micro: add %\"a\"", 3, 5), span("gather", "", 4, 6)};
  spans[1].work = "copy\n";
  EXPECT_EQ(chromeTrace(spans),
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank 0\"}},\n"
            "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":"
            "\"compute\"}},\n"
            "{\"ph\":\"M\",\"pid\":0,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":"
            "\"gather\"}},\n"
            "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"name\":\"micro: add %\\\"a\\\"\",\"ts\":0.000,"
            "\"dur\":2000.000,\"args\":{\"work\":\"kernel\"}},\n"
            "{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"name\":\"copy\\u000a\",\"ts\":1000.000,"
            "\"dur\":2000.000,\"args\":{\"work\":\"copy\\u000a\"}}\n]}\n");
}

TEST(ChromeTrace, SaysRankAndMicrobatch) {
  std::vector<Span> spans = {span("compute", "forward: add %a", 3, 5)};
  spans[0].rank = 5, spans[0].microbatch = 2;
  auto nameOf = [](int rank) { return "rank " + std::to_string(rank) + ", stage 2 of 3"; };
  std::string text = chromeTrace(spans, nameOf);
  EXPECT_THAT(text, testing::HasSubstr("\"args\":{\"name\":\"rank 5, stage 2 of 3\"}"));
  EXPECT_THAT(text, testing::HasSubstr("\"args\":{\"work\":\"kernel\",\"microbatch\":2}"));
}

} // namespace
} // namespace shardc::trace
