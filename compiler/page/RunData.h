// The data that a page shows of a run, from its metrics and trace, compared with the prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/page/MetricsFile.h"
#include "compiler/page/PlanData.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// A trace of one rank, whose spans were found in the plan.
struct TracedRun {
  std::string name; ///< of the file
  int rank = 0;
  size_t role = 0;
  int64_t steps = 0; ///< that begin in it
  Work work;
};

/// The rank of the trace with the smallest number. Nothing if no span is of an op of its role, or
/// no step begins.
std::optional<TracedRun> tracedRunOf(const plan::Plan &plan, std::vector<trace::Span> spans);

/// Series, timeline, sums by op, and a table of what was predicted and what was measured.
Json runData(const Subject &subject, const std::optional<Prediction> &prediction,
             const std::optional<Metrics> &metrics, const std::optional<TracedRun> &traced,
             const Limits &limits);

} // namespace shardc::page
