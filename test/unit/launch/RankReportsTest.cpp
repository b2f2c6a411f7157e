// Reports of ranks, printed once for the whole job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Reports.h"
#include "runtime/launch/RankReports.h"

namespace shardc::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Report reportOf(const char *channel) { return makeReport(report::NoWindows, channel); }

std::vector<std::string> merged(const std::vector<std::vector<const char *>> &byRank) {
  std::vector<std::vector<Report>> reports;
  for (const std::vector<const char *> &channels : byRank) {
    reports.emplace_back();
    for (const char *channel : channels)
      reports.back().push_back(reportOf(channel));
  }
  std::vector<std::string> lines;
  for (const Report &report : mergeReports(reports))
    lines.push_back(report.text.substr(0, report.text.find(':', report.text.find('\''))));
  return lines;
}

TEST(RankReports, AreToldOnceWithTheRanksThatHaveThem) {
  EXPECT_THAT(merged({{"a", "b"}, {"a"}, {"c", "a"}, {"a", "c"}}),
              ElementsAre("channel 'a'", "rank 0: channel 'b'", "rank 2, 3: channel 'c'"));
  EXPECT_THAT(merged({{"b", "b"}}), ElementsAre("channel 'b'")) << "one rank is all";
  EXPECT_THAT(merged({{}, {}}), IsEmpty());
}

TEST(RankReports, RanksAreListedAsRanges) {
  EXPECT_EQ(rangesOf({1, 2, 5, 6, 7, 9}), "1, 2, 5-7, 9");
}

TEST(RankReports, NamesARank) {
  EXPECT_EQ(rankNamedBy("rank 12 fell behind"), 12);
  EXPECT_FALSE(rankNamedBy("rank -1 does not respond"));
  EXPECT_FALSE(rankNamedBy("the ranks disagree"));
}

} // namespace
} // namespace shardc::launch
