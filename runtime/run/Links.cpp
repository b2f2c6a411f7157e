// Warns if the all-gather that was measured at the start reaches less than 90 % of the bandwidth
// that the plan's prediction assumes.
#include "runtime/run/Links.h"

#include "runtime/base/Reports.h"

namespace shardc::run {
namespace {

/// Lowest accepted share of the prediction. Measurements on one machine vary by a few per cent.
constexpr double kLeastShare = 0.9;

double predictedGBs(const plan::Plan &plan) { return plan.job.derived.predictedGatherGBs; }

} // namespace

std::string linkText(const plan::Plan &plan, const std::string &links, double gatherGBs) {
  std::string text = links.empty() ? "" : fmt::format("links: {}\n", links);
  if (gatherGBs > 0)
    text +=
        fmt::format("all-gather: {:.1f} GB/s; {:.1f} predicted\n", gatherGBs, predictedGBs(plan));
  return text;
}

void judgeLinks(const plan::Plan &plan, double gatherGBs, const ReportSink &emit) {
  double predicted = predictedGBs(plan);
  if (gatherGBs > 0 && gatherGBs < kLeastShare * predicted)
    emit(makeReport(report::SlowGathers, gatherGBs, predicted));
}

} // namespace shardc::run
