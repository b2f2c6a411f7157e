// The ranks that doctor names, and the groups of ranks that it measures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/host/Options.h"
#include "runtime/measure/Verdict.h"

namespace shardc::measure {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<RankPlace> kPlaces = {
    {"node1", ", GPU 0"}, {"node1", ", GPU 1"}, {"node2", ", GPU 0"}, {"node2", ", GPU 1"}};

Measured measured(const char *words, std::vector<double> shares) {
  Measured out{*Rate::ofWords(words), {}};
  for (double share : shares)
    out.seconds.push_back(out.rate.seconds / share);
  return out;
}

TEST(Verdict, NamesTheSlowRankOnce) {
  std::vector<Measured> all = {
      measured("product matmul bf16 1024 1024 1024 0.001", {1, 0.88, 1, 1.01}),
      measured("product matmul bf16 4096 4096 4096 0.01", {1, 0.7, 1, 0.99}),
      measured("memory copy bf16 1000000 0.001", {1, 0.95, 1, 1})};
  std::vector<Report> reports = judge(all, {}, kPlaces, {});
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].id, "rank-slow");
  EXPECT_THAT(reports[0].text,
              AllOf(HasSubstr("rank 1 on node1, GPU 1: product matmul bf16 4096 4096 4096 at"),
                    HasSubstr("30 % below the median of 4 ranks"), HasSubstr("up to 10 %")));
}

TEST(Verdict, FindsNothingInNoise) {
  std::vector<Measured> all = {measured("memory copy bf16 1000000 0.001", {1, 0.95, 1.05, 0.92})};
  EXPECT_THAT(judge(all, {}, kPlaces, {}), IsEmpty());
  EXPECT_THAT(judge(all, {}, kPlaces, {.slower = 0.07}), SizeIs(1));
}

TEST(Verdict, ComparesTheMedianWithWhatIsExpected) {
  std::vector<Measured> all = {measured("memory copy bf16 1000000 0.001", {1, 1, 1, 1})};
  std::vector<Rate> twice = {*Rate::ofWords("memory copy bf16 1000000 0.0005")};
  std::vector<Report> reports = judge(all, twice, kPlaces, {});
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].id, "machine-slow");
  EXPECT_THAT(reports[0].text, AllOf(HasSubstr("the median of 4 ranks is 1 GB/s"),
                                     HasSubstr("50 % below the 2 that are expected")));
  EXPECT_THAT(judge(all, twice, kPlaces, {.below = 0.6}), IsEmpty());
  std::vector<Rate> other = {*Rate::ofWords("memory copy bf16 2000000 0.0005")};
  EXPECT_THAT(judge(all, other, kPlaces, {}), IsEmpty());
}

TEST(Verdict, TellsOfMemory) {
  EXPECT_FALSE(judgeMemory({8, 0, -1}, "host", 1, kPlaces[1]));
  std::optional<Report> report = judgeMemory({8, 2, 77}, "device", 1, kPlaces[1]);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->id, "memory-differs");
  EXPECT_EQ(report->text, "rank 1 on node1, GPU 1: device memory read back other bytes than were "
                          "written: 2 of 16 blocks differ, the first at byte 77");
}

/// With a backend without kernels, copies are measured, and ops without measurements are named.
TEST(Measure, GoesOnWithoutWhatADeviceCannotDo) {
  auto backend = host::makeBackend({});
  BenchOptions options;
  options.findKernel = [](std::string_view) -> const kernels::Kernel * { return nullptr; };
  options.secondsEach = 0;
  auto bench = Bench::create(**backend, nullptr, options);
  ASSERT_TRUE(bench.isOk());
  std::vector<std::string> done, ids;
  MeasureOptions measure;
  measure.isQuick = true;
  measure.measured = [&](const Measured &each) { done.push_back(each.rate.op); };
  measure.emit = [&](const Report &report) { ids.emplace_back(report.id); };
  EXPECT_TRUE(measureAll(**bench, {{0}}, measure).isOk());
  EXPECT_THAT(done, ::testing::ElementsAre("copy", "to_device", "to_host"));
  EXPECT_THAT(ids, SizeIs(::testing::Ge(3u)));
  EXPECT_EQ(ids[0], "not-measured");
}

TEST(Groupings, CoverNodesAndRanksBetweenThem) {
  std::vector<Grouping> one = groupingsOf({{0, 1, 2, 3}});
  ASSERT_THAT(one, SizeIs(2));
  EXPECT_EQ(one[0].groups, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(one[1].members, 4);
  std::vector<Grouping> two = groupingsOf({{0, 1}, {2, 3}});
  ASSERT_THAT(two, SizeIs(3));
  EXPECT_EQ(two[0].groups, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(two[1].groups, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(two[1].inNode, 1);
  EXPECT_EQ(two[2].members, 4);
  EXPECT_EQ(two[2].inNode, 2);
  EXPECT_THAT(groupingsOf({{0}}), IsEmpty());
  // Three ranks cannot be divided into pairs.
  ASSERT_THAT(groupingsOf({{0, 1, 2}}), SizeIs(1));
}

} // namespace
} // namespace shardc::measure
