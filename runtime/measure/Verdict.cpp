// Compares medians, since a single slow rank changes the mean.
#include "runtime/measure/Verdict.h"

#include <algorithm>
#include <map>

#include "runtime/base/Reports.h"

namespace shardc::measure {
namespace {

double rateOf(const Rate &work, double seconds) {
  Rate rate = work;
  rate.seconds = seconds;
  return rate.rate();
}

/// The worst measurement of a rank, or of all ranks, in one kind of work.
struct Worst {
  double share = 0; ///< below the median, or below the expected rate
  const Measured *of = nullptr;
};

/// Kind and op: the subject of one report.
using Subject = std::pair<RateKind, std::string>;

} // namespace

std::optional<Report> judgeMemory(const MemoryFindings &findings, std::string_view what, int rank,
                                  const RankPlace &place) {
  if (findings.differing == 0)
    return std::nullopt;
  return makeReport(report::MemoryDiffers, rank, place.host, place.gpu, what, findings.differing,
                    2 * findings.blocks, findings.firstByte);
}

/// Each report names the worst measurement of its kind and op, so a slow rank is not reported once
/// per size. `median / own` below 1 means that the rank takes longer than the median.
std::vector<Report> judge(std::span<const Measured> measured, std::span<const Rate> expected,
                          std::span<const RankPlace> places, const VerdictOptions &options) {
  std::map<std::pair<size_t, Subject>, Worst> byRank;
  std::map<Subject, Worst> ofAll;
  auto keep = [](Worst &worst, double share, const Measured &of) {
    if (!worst.of || share > worst.share)
      worst = {share, &of};
  };
  for (const Measured &each : measured) {
    Subject subject = {each.rate.kind, each.rate.op};
    double median = medianOf(each.seconds);
    for (size_t rank = 0; rank < each.seconds.size(); ++rank)
      if (double share = 1 - median / each.seconds[rank]; share > options.slower)
        keep(byRank[{rank, subject}], share, each);
    for (const Rate &want : expected)
      if (want.isLike(each.rate))
        if (double share = 1 - want.seconds / median; share > options.below)
          keep(ofAll[subject], share, each);
  }
  std::vector<Report> reports;
  for (const auto &[key, worst] : byRank) {
    const Rate &rate = worst.of->rate;
    double own = worst.of->seconds[key.first];
    reports.push_back(makeReport(
        report::RankSlow, key.first, places[key.first].host, places[key.first].gpu, rate.text(),
        rateOf(rate, own), infoOf(rate.kind).unit, 100 * worst.share, worst.of->seconds.size(),
        rateOf(rate, medianOf(worst.of->seconds)), 100 * options.slower));
  }
  for (const auto &[subject, worst] : ofAll) {
    const Rate &rate = worst.of->rate;
    auto want = std::ranges::find_if(expected, [&](const Rate &r) { return r.isLike(rate); });
    reports.push_back(makeReport(report::MachineSlow, rate.text(), worst.of->seconds.size(),
                                 rateOf(rate, medianOf(worst.of->seconds)), infoOf(rate.kind).unit,
                                 100 * worst.share, want->rate(), 100 * options.below));
  }
  return reports;
}

} // namespace shardc::measure
