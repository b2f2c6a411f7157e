// Data about a run for a page: its metrics and trace, compared with the prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/page/MetricsFile.h"
#include "compiler/page/PlanData.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// The trace of one rank, whose spans were assigned to ops of the plan.
struct TracedRun {
  std::string name; ///< name of the file
  int rank = 0;
  size_t role = 0;
  int64_t steps = 0; ///< number of steps that begin in the trace
  Work work;
  Json schedule = Json::array(); ///< a row for each role with a rank in the trace
};

/// Uses the spans of the smallest rank in the trace. Empty if no role has this rank, no span
/// belongs to an op of its role, or no step begins.
std::optional<TracedRun> tracedRunOf(const plan::Plan &plan, std::vector<trace::Span> spans);

/// Series, timeline, sums per op, and a table that compares predicted and measured values.
Json runData(const Subject &subject, const std::optional<Prediction> &prediction,
             const std::optional<Metrics> &metrics, const std::optional<TracedRun> &traced,
             const Limits &limits);

} // namespace shardc::page
