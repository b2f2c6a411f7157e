#include "compiler/page/Schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "compiler/predict/InFlight.h"
#include "runtime/plan/Summary.h"

namespace shardc::page {
namespace {

/// The stream on which kernels take longest.
uint32_t busiestLane(const Work &work) {
  std::vector<double> seconds(work.lanes.size());
  for (const Piece &piece : work.pieces)
    seconds[piece.lane] += piece.of == Class::Transfer ? 0 : piece.seconds();
  return static_cast<uint32_t>(std::ranges::max_element(seconds) - seconds.begin());
}

} // namespace

bool hasSchedule(const plan::Plan &plan) {
  return plan.roles.size() > 1 ||
         std::ranges::any_of(plan.roles.front().segments,
                             [](const plan::Segment &each) { return each.shift != 0; });
}

/// The passes of a stage follow each other on one stream, in the order of its program. A trace does
/// not name microbatches, so a pass ends where another segment begins, or where an op runs again.
std::vector<DrawnPass> passesOf(const plan::Role &role, const Work &work) {
  const std::vector<predict::KeptRun> runs = predict::keptInStep(role);
  const uint32_t lane = work.lanes.empty() ? 0 : busiestLane(work);
  std::vector<DrawnPass> passes;
  std::set<uint32_t> seen; // labels of the pass; empty between passes
  uint32_t before = 0;     // label
  for (const Piece &piece : work.pieces) {
    const std::string &segment = work.names.list()[piece.segment];
    if (piece.lane != lane || piece.of == Class::Transfer || segment.empty())
      continue;
    auto isOf = [&](size_t run) {
      return run < runs.size() && role.segments[runs[run].segment].name == segment;
    };
    bool goesOn = !seen.empty() && isOf(passes.size() - 1) &&
                  (piece.label == before || !seen.contains(piece.label));
    if (!goesOn) {
      seen.clear();
      if (!isOf(passes.size()))
        continue; // of a later step, or no pass
      const predict::KeptRun &run = runs[passes.size()];
      passes.push_back({run.segment, run.microbatch, piece.begin, 0, run.bytes, run.passes});
    }
    seen.insert(piece.label);
    before = piece.label;
    passes.back().end = piece.end;
  }
  return passes;
}

nlohmann::ordered_json scheduleRow(const plan::Role &role, const std::vector<DrawnPass> &passes,
                                   const std::string &name) {
  auto toUs = [](double seconds) { return std::round(seconds * 1e7) / 10; };
  nlohmann::ordered_json rows = nlohmann::ordered_json::array(), segments = rows, shifts = rows;
  for (const plan::Segment &segment : role.segments)
    segments.push_back(segment.name), shifts.push_back(segment.shift);
  for (const DrawnPass &pass : passes)
    rows.push_back(
        {pass.segment, pass.microbatch, toUs(pass.begin), toUs(pass.end - pass.begin), pass.bytes});
  return {{"name", name}, {"segments", segments}, {"shifts", shifts}, {"passes", rows}};
}

std::string idleText(const plan::Plan &plan, const std::vector<std::vector<DrawnPass>> &passes,
                     double step) {
  struct Cause {
    const char *when;
    double seconds = 0;
  };
  std::array<Cause, 3> causes = {{{"before their first pass"},
                                  {"between passes"},
                                  {"between their last pass and that of all stages"}}};
  double end = 0, count = 0;
  for (const std::vector<DrawnPass> &own : passes)
    end = own.empty() ? end : std::max(end, own.back().end);
  const DrawnPass *most = nullptr;
  size_t stage = 0;
  for (size_t r = 0; r < passes.size(); ++r) {
    count += passes[r].empty() ? 0 : 1;
    for (size_t i = 0; i < passes[r].size(); ++i) {
      const DrawnPass &pass = passes[r][i];
      causes[i == 0 ? 0 : 1].seconds +=
          std::max(pass.begin - (i == 0 ? 0 : passes[r][i - 1].end), 0.0);
      if (most == nullptr || pass.bytes > most->bytes)
        most = &pass, stage = r;
    }
    causes[2].seconds += passes[r].empty() ? 0 : end - passes[r].back().end;
  }
  if (most == nullptr)
    return "";
  std::ranges::stable_sort(causes, std::ranges::greater(), &Cause::seconds);
  auto share = [&](double seconds) { return 100 * seconds / (count * step); };
  double all = causes[0].seconds + causes[1].seconds + causes[2].seconds;
  return fmt::format("Stages run no pass in {:.1f} % of the step: {:.1f} % {}, {:.1f} % {}, {:.1f} "
                     "% {}. {} keeps most, {} of {} forward passes, in {} of microbatch {}.",
                     share(all), share(causes[0].seconds), causes[0].when, share(causes[1].seconds),
                     causes[1].when, share(causes[2].seconds), causes[2].when,
                     plan.roles[stage].name, plan::formatBytes(most->bytes), most->kept,
                     plan.roles[stage].segments[most->segment].name, most->microbatch);
}

} // namespace shardc::page
