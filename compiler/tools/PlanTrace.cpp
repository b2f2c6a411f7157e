#include "compiler/tools/PlanTrace.h"

#include <cmath>

#include "compiler/predict/StepTime.h"
#include "runtime/plan/Printer.h"
#include "runtime/trace/ChromeTrace.h"

namespace shardc::tools {
namespace {

/// A trace has at most this many intervals, like the trace of a run.
constexpr size_t kSpansMax = size_t{1} << 22;

int64_t toNs(double seconds) { return std::llround(seconds * 1e9); }

} // namespace

std::string planTrace(const predict::Device &device, const plan::Plan &plan) {
  const plan::Role &role = plan.roles.front();
  std::vector<std::vector<std::string>> labels; // by segment and op
  for (const plan::Segment &segment : role.segments)
    labels.push_back(plan::opLabels(plan, segment));
  std::vector<trace::Span> spans;
  for (const predict::Interval &interval : predict::timelineOf(device, plan, role, kSpansMax)) {
    const plan::Op &op = role.segments[interval.segment].ops[interval.op];
    trace::Span span;
    span.stream = plan.streams[op.stream].name;
    span.label = labels[interval.segment][interval.op];
    span.work = plan::opInfo(op.kind).name;
    span.beginNs = toNs(interval.begin);
    span.endNs = toNs(interval.end);
    spans.push_back(std::move(span));
  }
  return trace::chromeTrace(spans);
}

} // namespace shardc::tools
