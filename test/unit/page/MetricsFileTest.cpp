// Tests reading metrics and traces that runs wrote: complete, truncated and wrong files.
#include "compiler/page/MetricsFile.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/page/TraceFile.h"
#include "runtime/trace/ChromeTrace.h"

namespace shardc::page {
namespace {

TEST(MetricsFile, MakesASeriesOfEachField) {
  Metrics metrics;
  MetricsFault fault;
  ASSERT_TRUE(readMetrics("{\"step\":1,\"loss\":3.5,\"lr\":0.1}\n\n{\"step\":2,\"loss\":null}\n"
                          "{\"step\":2,\"eval_loss\":3}\n",
                          metrics, fault));
  EXPECT_EQ(metrics.steps, 2u);
  ASSERT_EQ(metrics.series.size(), 3u);
  EXPECT_EQ(metrics.series[0].name, "loss");
  EXPECT_EQ(metrics.series[0].points.size(), 1u) << "null is no value";
  EXPECT_EQ(metrics.series[2].points[0].step, 2);
}

TEST(MetricsFile, TheLastValueOfAStepCounts) {
  Metrics metrics;
  MetricsFault fault;
  std::string text; // a run is killed after step 4, and resumes from its save of step 2
  for (auto [step, loss] : {std::pair(1, 9), {2, 8}, {3, 7}, {4, 6}, {3, 5}, {4, 4}, {5, 3}})
    text += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, loss);
  ASSERT_TRUE(readMetrics(text, metrics, fault));
  ASSERT_EQ(metrics.series.size(), 1u);
  std::vector<double> losses;
  for (const Point &point : metrics.series[0].points)
    losses.push_back(point.value);
  EXPECT_EQ(losses, (std::vector<double>{9, 8, 5, 4, 3}));
  EXPECT_EQ(metrics.steps, 5u);
}

TEST(MetricsFile, TheLastTextsOfAStepCount) {
  Metrics metrics;
  MetricsFault fault;
  std::string text; // a run is killed in the evaluation after step 4 and goes on from step 2
  for (auto [step, sample, said] :
       {std::tuple(2, 1, "a"), {2, 2, "b"}, {4, 1, "c"}, {4, 1, "d"}, {4, 2, "e"}})
    text += fmt::format(
        "{{\"step\":{},\"sample\":{},\"prompt\":\"p\",\"said\":\"{}\",\"data\":\"q\"}}\n", step,
        sample, said);
  ASSERT_TRUE(readMetrics(text, metrics, fault));
  EXPECT_TRUE(metrics.series.empty());
  std::string said;
  for (const SaidText &each : metrics.said)
    said += each.said;
  EXPECT_EQ(said, "abde");
  EXPECT_EQ(metrics.said.back().prompt + metrics.said.back().data, "pq");
}

TEST(MetricsFile, LeavesATornEndOut) {
  Metrics metrics;
  MetricsFault fault;
  EXPECT_TRUE(readMetrics("{\"step\":1}\n{\"ste", metrics, fault));
  EXPECT_FALSE(readMetrics("{\"ste", metrics, fault)) << "not where it is all that there is";
  EXPECT_EQ(fault.line, 1u);
}

TEST(MetricsFile, SaysWhichLineIsWrong) {
  Metrics metrics;
  MetricsFault fault;
  EXPECT_FALSE(readMetrics("{\"step\":1}\nx\n{\"step\":2}\n", metrics, fault));
  EXPECT_EQ(fault.line, 2u);
  EXPECT_EQ(fault.what, "no JSON");
  EXPECT_FALSE(readMetrics("{\"step\":\"1\"}\n", metrics, fault));
  EXPECT_EQ(fault.what, "an object without it");
  Metrics none;
  EXPECT_FALSE(readMetrics("\n \n", none, fault));
  EXPECT_EQ(fault.line, 0u);
}

TEST(MetricsFile, KeepsPeaksWhenThinned) {
  std::vector<Point> points;
  for (int i = 0; i < 10000; ++i)
    points.push_back({static_cast<double>(i), i == 4321 ? 100.0 : i == 8765 ? -100.0 : 0.0});
  std::vector<Point> fewer = thinned(points, 100);
  EXPECT_LE(fewer.size(), 100u);
  auto isStep = [](double step) { return testing::Field(&Point::step, step); };
  EXPECT_THAT(fewer, testing::Contains(isStep(4321)));
  EXPECT_THAT(fewer, testing::Contains(isStep(8765)));
  for (size_t i = 1; i < fewer.size(); ++i)
    EXPECT_LT(fewer[i - 1].step, fewer[i].step);
  EXPECT_EQ(thinned(points, 10000).size(), 10000u);
}

TEST(MetricsFile, SettlesAfterTheWarmup) {
  EXPECT_EQ(settled({"tokens_per_s", {{1, 5}, {2, 100}, {3, 90}, {4, 110}, {5, 100}}}), 100);
  EXPECT_EQ(settled({"tokens_per_s", {}}), 0);
}

TEST(TraceFile, ReadsWhatTheRuntimeWrites) {
  std::vector<trace::Span> spans = {{0, "compute", "micro: matmul %y", "gemm \"a\"", 1000, 5000, 2},
                                    {1, "gather", "", "copy", 2000, 2500, -1}};
  Result<std::vector<trace::Span>> read = readTrace(trace::chromeTrace(spans));
  ASSERT_TRUE(read.isOk()) << read.status().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].label, "micro: matmul %y");
  EXPECT_EQ((*read)[0].work, "gemm \"a\"");
  EXPECT_EQ((*read)[0].microbatch, 2);
  EXPECT_EQ((*read)[0].endNs - (*read)[0].beginNs, 4000);
  EXPECT_EQ((*read)[1].stream, "gather");
  EXPECT_EQ((*read)[1].rank, 1);
}

TEST(TraceFile, RefusesOtherForms) {
  for (const char *text :
       {"", "[1]", "{\"traceEvents\":1}", "{\"traceEvents\":[]}", "{\"traceEvents\":[1]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"name\":\"a\",\"ts\":0}]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":0,\"dur\":1}]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"pid\":\"0\",\"tid\":0,\"name\":\"a\",\"ts\":0,\"dur\":"
        "1}]}"})
    EXPECT_FALSE(readTrace(text).isOk()) << text;
}

} // namespace
} // namespace shardc::page
