#include "compiler/tools/TuneReport.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/tools/Pager.h"
#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Summary.h"

namespace shardc::tools {
namespace {

using config::Opt;

/// The time of a step by kind, in seconds. The parts add up to the step.
struct Parts {
  double compute = 0, exposed = 0, bubble = 0, recompute = 0;
};

Parts partsOf(const Tuned &tuned) {
  const predict::StepTime &time = tuned.time;
  Parts parts;
  parts.recompute = std::min(tuned.recomputed, time.compute);
  parts.exposed = time.exposed;
  parts.bubble = time.waiting;
  // The time of launches counts as compute.
  parts.compute = std::max(time.step - parts.exposed - parts.bubble - parts.recompute, 0.0);
  return parts;
}

/// If a plan uses more than this fraction of the memory, memory limits a faster layout.
constexpr double kNearlyAll = 0.9;

/// The main obstacle to a faster step.
std::string limitOf(const Tuned &tuned, int64_t memoryBytes) {
  Parts parts = partsOf(tuned);
  double used =
      memoryBytes > 0 ? static_cast<double>(tuned.bytes) / static_cast<double>(memoryBytes) : 0;
  std::pair<double, const char *> losses[] = {{parts.exposed, "exposed communication"},
                                              {parts.bubble, "pipeline bubble"},
                                              {parts.recompute, "recomputation"}};
  auto most = std::ranges::max_element(losses);
  constexpr double kWorthSaying = 0.02;
  std::string limit = most->first > kWorthSaying * tuned.time.step ? most->second : "compute";
  return used > kNearlyAll ? "memory, " + limit : limit;
}

/// Tokens per second and GPU.
double tokensOf(const Tuned &tuned, const config::Derived &d) {
  return static_cast<double>(d.globalBatch * d.seqLength) / static_cast<double>(d.worldSize) /
         tuned.time.step;
}

std::vector<std::string> cellsOf(const Tuned &tuned, const config::Derived &d,
                                 int64_t memoryBytes) {
  std::vector<std::string> cells(tuned.layout.words.begin(), tuned.layout.words.end());
  Parts parts = partsOf(tuned);
  auto share = [&](double seconds) {
    return fmt::format("{:.1f} %", 100 * seconds / tuned.time.step);
  };
  for (const std::string &cell :
       {plan::formatBytes(tuned.bytes), formatDuration(tuned.time.step),
        formatNumber(tokensOf(tuned, d)), limitOf(tuned, memoryBytes), share(parts.compute),
        share(parts.exposed), share(parts.bubble), share(parts.recompute)})
    cells.push_back(cell);
  return cells;
}

} // namespace

std::vector<const Tuned *> bestOfKinds(const TuneResult &result, size_t most) {
  std::vector<const Tuned *> rows;
  std::set<std::string> seen;
  for (const Tuned &tuned : result.found)
    if (rows.size() < most && seen.insert(tuned.layout.kindKey()).second)
      rows.push_back(&tuned);
  return rows;
}

namespace {

/// The columns for time and memory of a plan, after those of the knobs.
constexpr std::pair<const char *, const char *> kColumns[] = {
    {"memory", "bytes of the device that needs most"},
    {"step", "predicted seconds of a step"},
    {"tokens/s", "of each GPU"},
    {"next limit", "what to change first for a faster step"},
    {"compute", "share of the step in which kernels run, without recomputation"},
    {"exposed", "share in which only collectives run"},
    {"bubble", "share in which a stage waits for others"},
    {"recomputed", "share in which activations are computed again"},
};
constexpr size_t kFigures = 3; // of these first ones, all rows always have their own

/// The heading and the items in lines of at most 100 characters.
std::string listed(std::string text, const std::vector<std::string> &items) {
  constexpr size_t kWidth = 100;
  size_t width = text.size();
  for (size_t i = 0; i < items.size(); ++i) {
    std::string item = items[i] + (i + 1 < items.size() ? ";" : "");
    bool fits = width + 1 + item.size() <= kWidth;
    text += (fits ? " " : "\n  ") + item;
    width = fits ? width + 1 + item.size() : 2 + item.size();
  }
  return text + "\n";
}

} // namespace

std::string columnsText() {
  std::vector<std::string> items;
  for (size_t knob = 0; knob < kKnobCount; ++knob)
    items.push_back(fmt::format("{}: {}", knobInfo(static_cast<Knob>(knob)).column,
                                knobInfo(static_cast<Knob>(knob)).doc));
  for (const auto &[column, what] : kColumns)
    items.push_back(fmt::format("{}: {}", column, what));
  return listed("columns:", items);
}

std::string tableText(const std::vector<const Tuned *> &rows, const config::Derived &d,
                      int64_t memoryBytes) {
  std::vector<std::vector<std::string>> lines(1, {""});
  for (size_t knob = 0; knob < kKnobCount; ++knob)
    lines[0].emplace_back(knobInfo(static_cast<Knob>(knob)).column);
  for (const auto &[column, what] : kColumns)
    lines[0].emplace_back(column);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> line = cellsOf(*rows[i], d, memoryBytes);
    line.insert(line.begin(), std::to_string(i + 1));
    lines.push_back(std::move(line));
  }
  std::vector<std::string> same; // columns that do not tell rows apart
  for (size_t c = lines[0].size(); rows.size() > 1 && c-- > 1;)
    if ((c <= kKnobCount || c > kKnobCount + kFigures) &&
        std::all_of(lines.begin() + 2, lines.end(),
                    [&](const auto &line) { return line[c] == lines[1][c]; })) {
      same.insert(same.begin(), lines[0][c] + " " + lines[1][c]);
      for (std::vector<std::string> &line : lines)
        line.erase(line.begin() + static_cast<ptrdiff_t>(c));
    }
  std::string text = same.empty() ? "" : listed("the same in all rows:", same);
  std::vector<size_t> widths(lines[0].size());
  for (const std::vector<std::string> &line : lines)
    for (size_t c = 0; c < line.size(); ++c)
      widths[c] = std::max(widths[c], line[c].size());
  size_t most = terminalColumns(); // a narrow terminal gets the first columns
  for (const std::vector<std::string> &line : lines) {
    std::string row;
    for (size_t c = 0; c < line.size() && (most == 0 || row.size() + widths[c] <= most); ++c)
      row += fmt::format("{:>{}}  ", line[c], widths[c]);
    text += row.substr(0, row.size() - 2) + "\n";
  }
  for (size_t i = 0; i < rows.size(); ++i)
    if (!rows[i]->stages.empty())
      text += fmt::format("{}: its stages have {}\n", i + 1, rows[i]->stages);
  return text;
}

/// One line of JSON per compiled layout, with the estimates by which it was chosen.
std::string listText(const TuneResult &result, const config::Derived &d) {
  std::string text;
  auto add = [&](const Tuned &tuned, bool fits) {
    Parts parts = partsOf(tuned);
    nlohmann::ordered_json layout;
    for (size_t knob = 0; knob < kKnobCount; ++knob)
      layout[std::string(knobInfo(static_cast<Knob>(knob)).column)] = tuned.layout.words[knob];
    text += toText(nlohmann::ordered_json{{"layout", std::move(layout)},
                                          {"settings", tuned.layout.sets()},
                                          {"fits", fits},
                                          {"tokens_per_s", tokensOf(tuned, d)},
                                          {"seconds", tuned.time.step},
                                          {"estimated_seconds", tuned.estimate.seconds},
                                          {"exposed_seconds", parts.exposed},
                                          {"bubble_seconds", parts.bubble},
                                          {"recomputed_seconds", parts.recompute},
                                          {"bytes", tuned.bytes},
                                          {"estimated_bytes", tuned.estimate.bytes}}) +
            "\n";
  };
  for (const Tuned &tuned : result.found)
    add(tuned, true);
  for (const Tuned &tuned : result.tooLarge)
    add(tuned, false);
  return text;
}

/// Says what became of all combinations. The counts must add up to the size of the space.
std::string countsText(const TuneResult &result) {
  auto sum = result.compiled + result.beyondMemory + result.refused + result.slower + result.unseen;
  SHARDC_CHECK(sum == result.all, "{} of {} layouts are counted", sum, result.all);
  std::string text = fmt::format(
      "{} combinations of settings\n"
      "  {} compiled: {} fit, {} need more memory, {} are refused by a rule, "
      "{} recompute too much\n"
      "  {} not compiled: {} need more memory, {} are refused by a rule, {} cannot be faster than "
      "the best, {} could be by their estimates{}\n",
      result.all, result.compiled, result.fit, result.tooLarge.size(), result.refusedCompiled,
      result.givenUp, result.all - result.compiled, result.beyondMemory, result.refused,
      result.slower, result.unseen,
      !result.isPartial() ? ""
      : result.isStopped  ? " (the search was interrupted)"
                          : " ('--most' compiles more)");
  std::vector<std::pair<std::string, size_t>> refusals(result.refusals.begin(),
                                                       result.refusals.end());
  std::ranges::stable_sort(refusals, std::greater(), &std::pair<std::string, size_t>::second);
  constexpr size_t kShown = 5;
  std::string rules;
  for (size_t i = 0; i < std::min(kShown, refusals.size()); ++i)
    rules += fmt::format("{}{} {}", i == 0 ? "" : ", ", refusals[i].first, refusals[i].second);
  if (!rules.empty())
    text += fmt::format("  rules that refuse most: {}\n", rules);
  return text;
}

std::string comparisonText(const Tuned &first, const Tuned &second, const std::string &nameOfFirst,
                           const std::string &nameOfSecond) {
  bool isInOrder = first.time.step <= second.time.step;
  const Tuned &fast = isInOrder ? first : second, &slow = isInOrder ? second : first;
  double more = slow.time.step - fast.time.step;
  std::string text = fmt::format(
      "{} is faster than {} by {:.1f} %: {} instead of {}\n",
      isInOrder ? nameOfFirst : nameOfSecond, isInOrder ? nameOfSecond : nameOfFirst,
      100 * more / slow.time.step, formatDuration(fast.time.step), formatDuration(slow.time.step));
  for (size_t knob = 0; knob < kKnobCount; ++knob)
    if (fast.layout.words[knob] != slow.layout.words[knob])
      text += fmt::format("  {}: {} instead of {} ({})\n", knobInfo(static_cast<Knob>(knob)).column,
                          fast.layout.words[knob], slow.layout.words[knob],
                          knobInfo(static_cast<Knob>(knob)).doc);
  Parts of = partsOf(fast), than = partsOf(slow);
  auto part = [&](const char *name, double has, double had) {
    double less = had - has;
    if (std::abs(less) > 5e-4 * slow.time.step)
      text += fmt::format("  {}: {} {}, from {} to {}\n", name, formatDuration(std::abs(less)),
                          less > 0 ? "less" : "more", formatDuration(had), formatDuration(has));
  };
  part("compute", of.compute, than.compute);
  part("exposed communication", of.exposed, than.exposed);
  part("waiting for other stages", of.bubble, than.bubble);
  part("recomputation", of.recompute, than.recompute);
  text += fmt::format("  memory: {} instead of {}\n", plan::formatBytes(fast.bytes),
                      plan::formatBytes(slow.bytes));
  return text;
}

std::string overlayText(const config::Config &config, const config::Config &tuned,
                        const std::vector<std::string> &sets, const std::string &heading) {
  std::set<Opt> options;
  for (const std::string &set : sets)
    options.insert(*config::findOption(llvm::StringRef(set).split('=').first));
  std::map<std::string, std::string> bodies; // by section
  for (Opt opt : options) {
    std::string value = config::toRecipeText(tuned, opt);
    // Options that the recipe does not write are kept even if equal, because their derived values
    // may change; those that are unset before and after are not.
    bool isSame = value == config::toRecipeText(config, opt) &&
                  (config.isWritten(opt) || (!config.has(opt) && !tuned.has(opt)));
    const config::OptionInfo &info = config::info(opt);
    auto [section, name] = llvm::StringRef(info.path).split('.');
    if (!isSame)
      bodies[section.str()] += fmt::format("    {} = {}\n", name.str(), value);
  }
  std::string text = heading + fmt::format("recipe {}_tuned {{\n", config.name());
  for (const auto &[section, body] : bodies)
    text += fmt::format("  {} {{\n{}  }}\n", section, body);
  return text + "}\n";
}

} // namespace shardc::tools
