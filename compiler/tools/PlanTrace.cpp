#include "compiler/tools/PlanTrace.h"

#include <cmath>
#include <map>

#include <fmt/format.h>

#include "compiler/page/Work.h"
#include "compiler/predict/StepTime.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Text.h"
#include "runtime/trace/ChromeTrace.h"

namespace shardc::tools {
namespace {

/// Maximum number of intervals in a trace; that of a run's trace is equal.
constexpr size_t kSpansMax = size_t{1} << 22;

int64_t toNs(double seconds) { return std::llround(seconds * 1e9); }

} // namespace

/// One rank per role stands for all ranks of the role. Names and streams are those of a real trace,
/// so both can be compared.
std::string planTrace(const predict::Device &device, const plan::Plan &plan) {
  std::vector<std::vector<predict::Interval>> timelines =
      predict::timelinesOf(device, plan, kSpansMax);
  std::vector<trace::Span> spans;
  std::map<int, std::string> names; // by rank
  for (size_t r = 0; r < plan.roles.size(); ++r) {
    const plan::Role &role = plan.roles[r];
    int32_t rank = page::firstRank(plan, role);
    names[rank] = fmt::format("rank {}{}", rank, plan::stageOf(plan, static_cast<uint32_t>(r)));
    std::vector<std::vector<std::string>> labels; // by segment and op
    for (const plan::Segment &segment : role.segments)
      labels.push_back(plan::opLabels(plan, segment));
    for (const predict::Interval &interval : timelines[r]) {
      const plan::Op &op = role.segments[interval.segment].ops[interval.op];
      trace::Span span;
      span.rank = rank;
      span.stream = plan.streams[op.stream].name;
      span.label = labels[interval.segment][interval.op];
      span.work = plan::opInfo(op).name;
      span.beginNs = toNs(interval.begin);
      span.endNs = toNs(interval.end);
      span.microbatch = interval.microbatch;
      spans.push_back(std::move(span));
    }
  }
  return trace::chromeTrace(spans, [&](int rank) { return names.at(rank); });
}

} // namespace shardc::tools
