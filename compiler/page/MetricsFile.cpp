#include "compiler/page/MetricsFile.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "runtime/base/Json.h"

namespace shardc::page {
namespace {

Series &seriesOf(Metrics &metrics, const std::string &name) {
  for (Series &series : metrics.series)
    if (series.name == name)
      return series;
  metrics.series.push_back({name, {}});
  return metrics.series.back();
}

/// Adds a value. After returning to a checkpoint, a run reports steps again; the new values replace
/// the old ones.
void add(Series &series, Point point) {
  while (!series.points.empty() && series.points.back().step >= point.step)
    series.points.pop_back();
  series.points.push_back(point);
}

/// If a run resumed from an earlier step, its new texts replace those of later steps, as with
/// values.
void addText(const nlohmann::json &line, double step, Metrics &metrics) {
  auto text = [&](const char *name) {
    auto found = line.find(name);
    return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  SaidText said{step, line["sample"].get<int64_t>(), text("prompt"), text("said"), text("data")};
  std::erase_if(metrics.said, [&](const SaidText &other) {
    return other.step > step || (other.step == step && other.number >= said.number);
  });
  metrics.said.push_back(std::move(said));
}

/// Reads a line. Returns the error, or an empty text.
std::string addLine(const nlohmann::json &line, Metrics &metrics, std::set<double> &steps) {
  if (line.is_discarded())
    return "no JSON";
  if (!line.is_object())
    return std::string("a JSON ") + line.type_name();
  auto step = line.find("step");
  if (step == line.end() || !step->is_number())
    return "an object without it";
  steps.insert(step->get<double>());
  if (auto sample = line.find("sample"); sample != line.end() && sample->is_number_integer()) {
    addText(line, step->get<double>(), metrics);
    return "";
  }
  if (constexpr size_t kNamesMax = 10'000; std::max(line.size(), metrics.series.size()) > kNamesMax)
    return fmt::format("one of more than {} names", kNamesMax);
  for (const auto &[name, value] : line.items())
    if (name != "step" && value.is_number())
      add(seriesOf(metrics, name), {step->get<double>(), value.get<double>()});
  return "";
}

} // namespace

bool readMetrics(std::string_view text, Metrics &metrics, MetricsFault &fault) {
  std::set<double> steps;
  for (size_t number = 1; !text.empty(); ++number) {
    size_t end = text.find('\n');
    bool isWhole = end != std::string_view::npos;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(isWhole ? end + 1 : text.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      continue;
    nlohmann::json json = parseJson(line);
    if (!isWhole && json.is_discarded() && !steps.empty())
      break;
    fault = {number, addLine(json, metrics, steps)};
    if (!fault.what.empty())
      return false;
  }
  metrics.steps = steps.size();
  fault = {};
  return !steps.empty();
}

std::vector<Point> thinned(const std::vector<Point> &points, size_t pointsMax) {
  if (points.size() <= pointsMax)
    return points;
  std::vector<Point> out;
  size_t parts = std::max<size_t>(pointsMax / 2, 1);
  for (size_t part = 0; part < parts; ++part) {
    auto begin = points.begin() + static_cast<std::ptrdiff_t>(part * points.size() / parts);
    auto end = points.begin() + static_cast<std::ptrdiff_t>((part + 1) * points.size() / parts);
    auto [least, most] = std::minmax_element(
        begin, end, [](const Point &a, const Point &b) { return a.value < b.value; });
    out.push_back(*std::min(least, most));
    if (least != most)
      out.push_back(*std::max(least, most));
  }
  return out;
}

double settled(const Series &series) {
  std::vector<double> values;
  for (size_t i = series.points.size() / 2; i < series.points.size(); ++i)
    values.push_back(series.points[i].value);
  if (values.empty())
    return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

} // namespace shardc::page
