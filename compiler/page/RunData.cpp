#include "compiler/page/RunData.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"

namespace shardc::page {
namespace {

/// The role's ranks are given by ranges of mesh coordinates. The last axis of the mesh varies
/// fastest.
bool hasRank(const plan::Plan &plan, const plan::Role &role, int64_t rank) {
  for (const plan::AxisRange &range : role.where) {
    int64_t stride = 1;
    for (size_t axis = plan.mesh.size() - 1; axis > range.axis; --axis)
      stride *= plan.mesh[axis].size;
    int64_t at = rank / stride % plan.mesh[range.axis].size;
    if (at < range.begin || at >= range.end)
      return false;
  }
  return rank >= 0 && rank < plan.worldSize();
}

const Series *findSeries(const Metrics &metrics, std::string_view name) {
  for (const Series &series : metrics.series)
    if (series.name == name)
      return &series;
  return nullptr;
}

Json metricsJson(const Metrics &metrics, const Limits &limits) {
  Json list = Json::array();
  for (const Series &series : metrics.series) {
    Json points = Json::array();
    for (const Point &point : thinned(series.points, limits.points))
      points.push_back({point.step, point.value});
    list.push_back({{"name", series.name}, {"count", series.points.size()}, {"points", points}});
  }
  Json said = Json::array();
  constexpr size_t kTextsMax = 64; // the last ones
  for (size_t i = metrics.said.size() - std::min(metrics.said.size(), kTextsMax);
       i < metrics.said.size(); ++i) {
    const SaidText &text = metrics.said[i];
    said.push_back({{"step", text.step},
                    {"sample", text.number},
                    {"prompt", text.prompt},
                    {"said", text.said},
                    {"data", text.data}});
  }
  return {{"file", metrics.name}, {"steps", metrics.steps}, {"series", list}, {"said", said}};
}

/// Sums by the names of op and group, since indices differ between two Works.
using SumsByName = std::map<std::pair<std::string, std::string>, OpSum>;

SumsByName sumsByName(const Work &work, const std::vector<Exposed> &exposed) {
  SumsByName byName;
  const std::vector<std::string> &names = work.names.list();
  for (const OpSum &sum : sumsOf(work, exposed))
    byName[{names[sum.op], names[sum.group]}] = sum;
  return byName;
}

/// The ops of a run by name and group, the longest first, with predicted times where the prediction
/// has the op.
Json opsJson(const SumsByName &measured, const SumsByName &predicted, double steps) {
  std::vector<std::pair<double, Json>> rows;
  for (const auto &[name, sum] : measured) {
    Json row = {{"op", name.first},           {"group", name.second},
                {"transfer", sum.isTransfer}, {"count", static_cast<double>(sum.count) / steps},
                {"s", sum.seconds / steps},   {"exposed_s", sum.exposed / steps}};
    auto other = predicted.find(name);
    row["predicted_s"] = other == predicted.end() ? Json(nullptr) : Json(other->second.seconds);
    rows.emplace_back(sum.seconds, std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto &a, const auto &b) { return a.first > b.first; });
  Json list = Json::array();
  for (auto &[seconds, row] : rows)
    list.push_back(std::move(row));
  return list;
}

Json besideRow(const char *what, const char *unit, std::optional<double> predicted,
               double measured) {
  return {{"what", what},
          {"unit", unit},
          {"predicted", predicted ? Json(*predicted) : Json(nullptr)},
          {"measured", measured}};
}

/// The predicted step time of `role`; empty if there is no prediction.
std::optional<predict::StepTime> timeOfRole(const std::optional<Prediction> &prediction,
                                            size_t role) {
  return prediction ? std::optional(prediction->times[role]) : std::nullopt;
}

void addTrace(const std::optional<Prediction> &prediction, const TracedRun &traced,
              const Limits &limits, Json &json) {
  std::vector<Exposed> exposed = exposedOf(traced.work);
  Shares shares = sharesOf(traced.work, exposed);
  auto steps = static_cast<double>(traced.steps);
  std::optional<predict::StepTime> time = timeOfRole(prediction, traced.role);
  auto of = [&](double predict::StepTime::*field) {
    return time ? std::optional((*time).*field) : std::nullopt;
  };
  Json &beside = json["beside"];
  beside.push_back(besideRow("step", "s", of(&predict::StepTime::step), shares.total / steps));
  beside.push_back(
      besideRow("kernels", "s", of(&predict::StepTime::compute), shares.computing / steps));
  beside.push_back(besideRow("exposed communication", "s", of(&predict::StepTime::exposed),
                             shares.exposed / steps));
  SumsByName predicted;
  if (prediction)
    predicted = sumsByName(prediction->works[traced.role], prediction->exposed[traced.role]);
  Json trace = {{"file", traced.name},
                {"steps", traced.steps},
                {"name", fmt::format("rank {}", traced.rank)},
                {"schedule", traced.schedule},
                {"ops", opsJson(sumsByName(traced.work, exposed), predicted, steps)}};
  trace.update(timelineData(traced.work, exposed, limits.blocks, limits.exposed));
  json["trace"] = std::move(trace);
  auto share = [&](double part) { return 100 * part / std::max(shares.total, 1e-12); };
  json["lines"].push_back(fmt::format(
      "Measured on rank {}: a step takes {}; kernels run in {:.1f} % of it, communication is "
      "exposed in {:.1f} %, and nothing runs in {:.1f} %.",
      traced.rank, formatDuration(shares.total / steps), share(shares.computing),
      share(shares.exposed), share(shares.idle)));
}

/// The results of training, one line each: loss, validation loss, and the number of tokens and
/// steps.
Json outcomeOf(const Metrics &metrics) {
  Json lines = Json::array();
  if (const Series *loss = findSeries(metrics, "loss"); loss && !loss->points.empty())
    lines.push_back(fmt::format("Loss {} at step {}, {} at step {}.",
                                formatNumber(loss->points.back().value), loss->points.back().step,
                                formatNumber(loss->points.front().value),
                                loss->points.front().step));
  if (const Series *eval = findSeries(metrics, "eval_loss"); eval && !eval->points.empty()) {
    auto best = std::ranges::min_element(eval->points, {}, &Point::value);
    lines.push_back(fmt::format("Validation loss {} at the end, best {} at step {}.",
                                formatNumber(eval->points.back().value), formatNumber(best->value),
                                best->step));
  }
  const Series *tokens = findSeries(metrics, "tokens"),
               *speed = findSeries(metrics, "tokens_per_s");
  double all = 0, seconds = 0;
  for (size_t i = 0; tokens && i < tokens->points.size(); ++i) {
    all += tokens->points[i].value;
    if (speed && speed->points.size() == tokens->points.size() && speed->points[i].value > 0)
      seconds += tokens->points[i].value / speed->points[i].value;
  }
  if (all > 0)
    lines.push_back(
        fmt::format("{} tokens in {} steps{}.", formatNumber(all), metrics.steps,
                    seconds > 0 ? ", " + formatDuration(seconds) + " of training" : ""));
  return lines;
}

void addMetrics(const Subject &subject, const std::optional<Prediction> &prediction,
                const Metrics &metrics, const Limits &limits, Json &json) {
  json["metrics"] = metricsJson(metrics, limits);
  json["outcome"] = outcomeOf(metrics);
  const Series *speed = findSeries(metrics, "tokens_per_s");
  if (!speed)
    return;
  double measured = settled(*speed);
  std::optional<double> predicted;
  if (prediction)
    predicted = static_cast<double>(tokensOfStep(*subject.plan)) / prediction->time().step;
  json["beside"].push_back(besideRow("tokens/s of all ranks", "", predicted, measured));
  std::string beside =
      predicted ? fmt::format("; {} were predicted ({:+.1f} %)", formatNumber(*predicted),
                              100 * (measured / *predicted - 1))
                : "";
  json["lines"].push_back(
      fmt::format("The run trains on {} tokens/s{}.", formatNumber(measured), beside));
}

} // namespace

/// A row for each role of a pipeline, of its smallest rank in the trace.
static Json tracedSchedule(const plan::Plan &plan, const std::vector<trace::Span> &spans) {
  Json rows = Json::array();
  std::map<int, std::vector<trace::Span>> byRank;
  for (const trace::Span &span : spans)
    byRank[span.rank].push_back(span);
  for (size_t r = 0; r < plan.roles.size() && hasSchedule(plan); ++r) {
    const plan::Role &role = plan.roles[r];
    auto own = std::ranges::find_if(
        byRank, [&](const auto &each) { return hasRank(plan, role, each.first); });
    if (own == byRank.end())
      continue;
    size_t known = 0;
    int64_t steps = 0;
    Work work = tracedWork(plan, role, own->second, known, steps);
    rows.push_back(scheduleRow(role, passesOf(role, work), role.name + ", traced"));
  }
  return rows;
}

std::optional<TracedRun> tracedRunOf(const plan::Plan &plan, std::vector<trace::Span> spans) {
  TracedRun run;
  run.schedule = tracedSchedule(plan, spans);
  run.rank = std::numeric_limits<int>::max();
  for (const trace::Span &span : spans)
    run.rank = std::min(run.rank, span.rank);
  std::erase_if(spans, [&](const trace::Span &span) { return span.rank != run.rank; });
  while (run.role < plan.roles.size() && !hasRank(plan, plan.roles[run.role], run.rank))
    ++run.role;
  if (run.role == plan.roles.size())
    return std::nullopt;
  size_t known = 0;
  run.work = tracedWork(plan, plan.roles[run.role], spans, known, run.steps);
  if (known == 0 || run.steps == 0)
    return std::nullopt;
  return run;
}

Json runData(const Subject &subject, const std::optional<Prediction> &prediction,
             const std::optional<Metrics> &metrics, const std::optional<TracedRun> &traced,
             const Limits &limits) {
  Json json = {{"lines", Json::array()}, {"beside", Json::array()}};
  if (traced)
    addTrace(prediction, *traced, limits, json);
  if (metrics)
    addMetrics(subject, prediction, *metrics, limits, json);
  return json;
}

} // namespace shardc::page
