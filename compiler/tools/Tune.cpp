// shardc tune: searches for the fastest layout of a recipe's ranks that fits, explains why it is
// fastest, and writes it as an overlay.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/config/Mesh.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/Pager.h"
#include "compiler/tools/TuneSearch.h"
#include "compiler/tools/TuneSpace.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Summary.h"
#include "llvm/Support/raw_ostream.h"

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

/// The fastest layout of each kind, at most `most`.
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

/// The legend of that table.
std::string columnsText() {
  std::vector<std::string> items;
  for (size_t knob = 0; knob < kKnobCount; ++knob)
    items.push_back(fmt::format("{}: {}", knobInfo(static_cast<Knob>(knob)).column,
                                knobInfo(static_cast<Knob>(knob)).doc));
  for (const auto &[column, what] : kColumns)
    items.push_back(fmt::format("{}: {}", column, what));
  return listed("columns:", items);
}

/// One row per layout: its choices, its memory, where its time is spent, and what limits it.
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

/// One line of JSON per compiled layout: those that fit, fastest first, then the others.
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

/// The number of layouts, and why most were not compiled.
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

/// Explains why the faster of two layouts is faster: choices that differ, and components of the
/// time.
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

/// An overlay of `config` with the settings of `tuned`.
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

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMicroBatchMax = 4;
/// Memory of a device that layouts leave free: twice what a prediction may lack.
constexpr int64_t kReserve = kGiB;

struct TuneOptions {
  CommonOptions common;
  std::vector<std::string> free, allow;
  std::string gpus, output, list;
  int64_t memory = 0, deadline = 0, threads = 0, rows = 10, microBatchMax = 0, most = 1000;
  std::vector<std::string> explain;
  bool exhaustive = false, force = false;
};

/// A progress line on a terminal, which is erased at the end.
class Progress {
public:
  ~Progress() {
    if (hasShown_)
      llvm::errs() << "\r\x1b[K";
  }
  void show(size_t compiled, size_t left, const Tuned *best) {
    if (!isTerminal_)
      return;
    hasShown_ = true;
    llvm::errs() << fmt::format(
        "\r\x1b[Kcompiled {}, at most {} left{}", compiled, left,
        best ? fmt::format(", best step {}; Ctrl-C takes it", formatDuration(best->time.step))
             : "");
  }

private:
  bool isTerminal_ = llvm::errs().is_displayed(), hasShown_ = false;
};

/// Parses the minimum and maximum number of GPUs: `16..256` or one number. Empty if the text is
/// neither.
std::optional<std::pair<int64_t, int64_t>> parseRange(const std::string &text) {
  auto [first, last] = llvm::StringRef(text).split("..");
  int64_t least = 0, most = 0;
  if (first.getAsInteger(10, least) ||
      (last.empty() ? text != first.str() : last.getAsInteger(10, most)))
    return std::nullopt;
  most = last.empty() ? least : most;
  return least > 0 && least <= most ? std::optional(std::pair(least, most)) : std::nullopt;
}

/// Describes an error in the command line that no recipe could make valid; empty if there is none.
std::string wrongUse(const TuneOptions &options) {
  for (const std::string &path : options.free) {
    std::optional<config::Opt> opt = config::findOption(path);
    if (path != "all" && !opt)
      return fmt::format("'--free={}' names no option", path);
    if (path != "all" && !isSearched(*opt))
      return fmt::format("'--free={}' names an option that tune leaves as it is; it searches "
                         "parallel sizes, sharding, micro batch and recomputation",
                         path);
  }
  if (!options.gpus.empty() && !parseRange(options.gpus))
    return fmt::format("'--gpus={}' is no number and no range like 16..256", options.gpus);
  if (options.gpus.empty() != (options.deadline == 0))
    return "'--gpus' and '--deadline' go together: the fewest GPUs that end a run in time";
  auto isRow = [&](const std::string &text) {
    int64_t row = 0;
    return !llvm::StringRef(text).getAsInteger(10, row) && row >= 1 && row <= options.rows;
  };
  for (const std::string &row : options.explain)
    if (!isRow(row))
      return fmt::format("'--explain' takes two rows of the table, from 1 to {}; found '{}'",
                         options.rows, row);
  std::error_code error;
  std::vector<std::string> inputs = options.common.load.overlays;
  inputs.push_back(options.common.load.path);
  for (const std::string &file : {options.output, options.list})
    if (std::string why = whyKept(file, inputs); !why.empty())
      return why;
  for (const std::string &file : {options.output, options.list})
    if (!file.empty() && file != "-" && !options.force && std::filesystem::exists(file, error))
      return "'" + file + "' exists; '--force' replaces it";
  return "";
}

class Tuner {
public:
  Tuner(const TuneOptions &options, Session &session) : options_(options), session_(session) {}

  ExitStatus run() {
    std::optional<config::Config> config = load({});
    if (!config)
      return session_.finish();
    const config::Derived &d = config->derived();
    if (!d.gpu || predict::device(*d.gpu).isHost()) {
      session_.diags().report(diag::TuneNeedsGpu, config->range(config::Opt::ClusterGpu),
                              d.gpu ? fmt::format("'{}'", config::spelling(*d.gpu).str())
                                    : "not set");
      return session_.finish();
    }
    if (options_.gpus.empty())
      return finish(*config, searchOf(*config, {}), {});
    return fewest(*config);
  }

  /// The overlay with the best layout; empty if none is found.
  std::optional<std::string> best() {
    std::optional<config::Config> config = load({});
    if (!config || session_.diags().hasErrors() || !config->derived().gpu)
      return std::nullopt;
    TuneResult result = searchOf(*config, {});
    return result.found.empty() ? std::nullopt
                                : std::optional(overlayOf(*config, result.found.front(), {}));
  }

private:
  std::optional<config::Config> load(const std::vector<std::string> &sets) {
    config::LoadOptions load = options_.common.load;
    load.sets.insert(load.sets.end(), sets.begin(), sets.end());
    return config::loadConfig(session_.sources(), session_.diags(), load);
  }

  /// Whether the option is set in the recipe itself, an overlay or the command line; a base recipe
  /// does not count.
  bool isFixed(const config::Config &config, config::Opt opt) const {
    const config::Provenance &from = config[opt].from;
    if (from.origin == config::Origin::CommandLine)
      return true;
    for (const std::string &path : options_.free)
      if (path == "all" || config::findOption(path) == opt)
        return false;
    if (from.origin == config::Origin::Recipe)
      return session_.sources().bufferOf(from.item.begin) == config.buffer();
    return from.origin == config::Origin::Overlay;
  }

  /// The bytes of a device that layouts may use: those that the flag or the recipe allows, or all
  /// but the reserve; 0: unlimited.
  int64_t memoryOf(const config::Config &config) const {
    const int64_t limit = options_.memory * kGiB, all = config.derived().memoryBytes;
    if (limit > 0)
      return all == 0 ? limit : std::min(limit, all);
    return all > kReserve && !config.isWritten(config::Opt::ClusterMemory) ? all - kReserve : all;
  }

  /// The setting that limits what automatic recomputation fills.
  std::string memorySet(const config::Config &config) const {
    return fmt::format("cluster.memory={}", memoryOf(config));
  }

  TuneResult searchOf(const config::Config &config, const std::vector<std::string> &sets) {
    const config::Derived &d = config.derived();
    TuneSizes sizes{d.worldSize,
                    std::min(d.gpusPerNode, d.worldSize),
                    d.numLayers,
                    d.globalBatch,
                    options_.microBatchMax > 0 ? options_.microBatchMax
                                               : std::max(kMicroBatchMax, d.microBatch),
                    config.getIntOr(config::Opt::ModelNumMoeExperts, 1),
                    std::ranges::find(options_.allow, "fp8") != options_.allow.end(),
                    config.has(config::Opt::PeftScheme) && !config.has(config::Opt::PeftQuantize) &&
                        !config.is(config::Opt::PeftScheme, config::PeftScheme::Dora),
                    config::stageRequestOf(config)};
    TuneSpace space =
        makeSpace(config, sizes, [&](config::Opt opt) { return isFixed(config, opt); });
    kept_ = space.kept;
    TuneRequest request;
    request.common = options_.common;
    request.common.load.sets.insert(request.common.load.sets.end(), sets.begin(), sets.end());
    request.common.load.sets.push_back(fmt::format("train.global_batch_size={}", d.globalBatch));
    if (memoryOf(config) > 0)
      request.common.load.sets.push_back(memorySet(config));
    request.common.load.read = config::readRecipe(request.common.load);
    if (request.common.load.read)
      request.common.load.sets.clear();
    request.memoryBytes = memoryOf(config);
    std::string why;
    request.own = own_ = evaluate(request.common, {}, why);
    if (own_)
      own_->layout = request.own->layout = space.own;
    if (own_ && request.memoryBytes > 0 && own_->bytes > request.memoryBytes)
      request.own.reset();
    request.threads = options_.threads > 0
                          ? static_cast<size_t>(options_.threads)
                          : std::max<size_t>(std::thread::hardware_concurrency(), 1);
    request.prunes = !options_.exhaustive;
    if (request.prunes)
      request.most = static_cast<size_t>(options_.most);
    Progress progress;
    request.isStopped = StopOnSignal::isAsked;
    request.onProgress = [&](size_t compiled, size_t left, const Tuned *best) {
      progress.show(compiled, left, best);
    };
    return search(space, request);
  }

  /// Doubles the number of nodes until the run is short enough.
  ExitStatus fewest(const config::Config &config) {
    auto [least, most] = *parseRange(options_.gpus);
    int64_t perNode = config.derived().gpusPerNode;
    double fastest = 0;
    for (int64_t nodes = std::max<int64_t>((least + perNode - 1) / perNode, 1);
         nodes * perNode <= most && !StopOnSignal::isAsked(); nodes *= 2) {
      std::vector<std::string> sets = {fmt::format("cluster.nodes={}", nodes)};
      std::optional<config::Config> with = load(sets);
      if (!with)
        return session_.finish();
      TuneResult result = searchOf(*with, sets);
      if (result.found.empty())
        continue;
      double seconds =
          result.found.front().time.step * static_cast<double>(with->derived().trainIters);
      printOut("{} GPUs: {} steps take {}\n", nodes * perNode, with->derived().trainIters,
               formatDuration(seconds));
      fastest = fastest > 0 ? std::min(fastest, seconds) : seconds;
      if (seconds <= 3600.0 * static_cast<double>(options_.deadline))
        return finish(*with, std::move(result), sets);
    }
    session_.diags().report(diag::TuneMissesDeadline, config.range(config::Opt::TrainTrainIters),
                            most, fastest > 0 ? formatDuration(fastest) : "no time: none fits",
                            formatDuration(3600.0 * static_cast<double>(options_.deadline)));
    return session_.finish();
  }

  ExitStatus reportNothing(const config::Config &config, const TuneResult &result) {
    SourceRange place = config.range(config::Opt::ClusterGpu);
    auto all = static_cast<int64_t>(result.all);
    auto smallest = std::ranges::min_element(result.tooLarge, {}, &Tuned::bytes);
    bool isCompiled = smallest != result.tooLarge.end();
    if (!isCompiled && result.beyondMemory == 0)
      session_.diags().report(diag::TuneNothingCompiles, place, all);
    else
      reportTooLarge(config, place, all,
                     isCompiled ? plan::formatBytes(smallest->bytes)
                                : "about " + plan::formatBytes(result.leastBeyond));
    return session_.finish();
  }

  /// Reports that no layout fits, and what else would, such as adapters or more nodes.
  void reportTooLarge(const config::Config &config, SourceRange place, int64_t all,
                      const std::string &smallest) {
    int64_t limit = memoryOf(config);
    DiagBuilder report = session_.diags().report(diag::TuneFoundNothing, place, all, smallest,
                                                 plan::formatBytes(limit));
    for (const FitChange &change : tryChanges(config, options_.common))
      if (change.bytes <= limit)
        report.note(diag::WouldFit, SourceRange(), change.what, plan::formatBytes(change.bytes));
  }

  ExitStatus finish(const config::Config &config, TuneResult result,
                    const std::vector<std::string> &sets) {
    const config::Derived &d = config.derived();
    if (result.found.empty() && !StopOnSignal::isAsked())
      return reportNothing(config, result);
    std::vector<const Tuned *> rows = bestOfKinds(result, static_cast<size_t>(options_.rows));
    std::string text;
    for (const std::string &line : kept_)
      text += fmt::format("kept: {}\n", line);
    if (StopOnSignal::isAsked())
      text += "interrupted: these are the best so far\n";
    text += countsText(result) + tableText(rows, d, memoryOf(config)) + ownText(config, rows);
    if (options_.explain.size() == 2)
      text += explanation(rows);
    text += columnsText();
    printOut("{}", text);
    std::fflush(stdout);
    ExitStatus listed =
        options_.list.empty() ? kFine : writeOutput(options_.list, listText(result, d));
    if (options_.output.empty() || rows.empty())
      return std::max(session_.finish(), listed);
    return std::max(write(config, *rows.front(), sets), listed);
  }

  /// Describes the recipe's own layout, and explains why the best one is faster.
  std::string ownText(const config::Config &config, const std::vector<const Tuned *> &rows) const {
    if (!own_ || rows.empty())
      return "";
    int64_t limit = options_.memory > 0 ? memoryOf(config) : config.derived().memoryBytes;
    bool fits = limit == 0 || own_->bytes <= limit, isBest = rows.front()->layout.sets().empty();
    return fmt::format("the recipe itself: {}, a step takes {}{}{}\n",
                       plan::formatBytes(own_->bytes), formatDuration(own_->time.step),
                       fits ? "" : "; it does not fit",
                       isBest ? "; no other layout is faster" : "");
  }

  std::string explanation(const std::vector<const Tuned *> &rows) const {
    auto at = [&](size_t i) { return static_cast<size_t>(std::stoll(options_.explain[i])); };
    if (std::max(at(0), at(1)) > rows.size())
      return fmt::format("the table has {} rows: there is nothing to compare\n", rows.size());
    return comparisonText(*rows[at(0) - 1], *rows[at(1) - 1], "row " + options_.explain[0],
                          "row " + options_.explain[1]);
  }

  ExitStatus write(const config::Config &config, const Tuned &best,
                   const std::vector<std::string> &sets) {
    ExitStatus written = writeOutput(options_.output, overlayOf(config, best, sets));
    return std::max(session_.finish(), written);
  }

  std::string overlayOf(const config::Config &config, const Tuned &best,
                        const std::vector<std::string> &sets) {
    std::vector<std::string> all = best.layout.sets();
    all.insert(all.end(), sets.begin(), sets.end());
    if (best.layout.is(Knob::Recompute, "auto"))
      all.push_back(memorySet(config));
    // A separate manager, because its remarks would concern settings that the user did not write.
    SourceManager sources;
    DiagEngine diags(sources);
    config::LoadOptions load = options_.common.load;
    load.sets.insert(load.sets.end(), all.begin(), all.end());
    std::optional<config::Config> tuned = config::loadConfig(sources, diags, load);
    SHARDC_CHECK(tuned, "the best layout was compiled, and now it cannot be read");
    std::string heading = fmt::format(
        "// For {} GPUs: a step is predicted to take {} in {} of a device.\n",
        tuned->derived().worldSize, formatDuration(best.time.step), plan::formatBytes(best.bytes));
    return overlayText(config, *tuned, all, heading);
  }

  const TuneOptions &options_;
  Session &session_;
  std::vector<std::string> kept_;
  std::optional<Tuned> own_; ///< result for the recipe's own layout
};

ExitStatus runTune(const TuneOptions &options) {
  if (std::string why = wrongUse(options); !why.empty())
    return refuseUsage(why);
  for (const std::string &file : {options.output, options.list})
    if (ExitStatus status = checkOutput(file); status != kFine)
      return status;
  Session session(options.common);
  StopOnSignal ends; // the search
  return Tuner(options, session).run();
}

} // namespace

std::optional<std::string> tunedLayout(const std::string &recipe) {
  TuneOptions options;
  options.common.load.path = recipe;
  options.most = 100; // in the order of their estimates; a first recipe need not be the fastest
  Session session(options.common);
  StopOnSignal ends; // the search
  return Tuner(options, session).best();
}

void addTune(cli::Command &app, int &status) {
  auto options = std::make_shared<TuneOptions>();
  options->common.remarks = "hidden"; // remarks would be about the recipe, not about the result
  cli::Command &command =
      app.addCommand("tune", "search the fastest layout of a recipe's ranks that fits");
  options->common.addTo(command);
  command.option("--free", options->free, "search an option that the recipe sets, or all of them")
      .repeatableOneByOne();
  command.option("--allow", options->allow, "search types that change numbers")
      .oneOf({"fp8"})
      .repeatableOneByOne();
  command.option("--memory", options->memory, "most GiB of a device; default: all but one")
      .positive();
  command.option("--gpus", options->gpus, "with --deadline: least and most GPUs, as 16..256");
  command.option("--deadline", options->deadline, "hours in which all steps are to end").positive();
  command
      .option("--micro-batch-max", options->microBatchMax,
              "largest micro batch that is tried; default: 4, or the recipe's if that is larger")
      .positive();
  command.option("--most", options->most, "layouts that are compiled; the search then ends")
      .positive()
      .showsDefault();
  command.option("--rows", options->rows, "rows of the table, which differ in kind")
      .positive()
      .showsDefault();
  command.option("--explain", options->explain, "why one row of the table beats another: A B")
      .takes(2, 2);
  command.option("-o,--output", options->output, "write the best layout as an overlay");
  command.option("--list", options->list, "write each layout that was compiled as a line of JSON");
  command.flag("--force", options->force, "replace output files that exist");
  command.option("--threads", options->threads, "threads; default: one for each processor")
      .positive();
  command.flag("--exhaustive", options->exhaustive, "compile every layout, to check the search");
  command.onUse([options, &status] { status = runTune(*options); });
}

} // namespace shardc::tools
