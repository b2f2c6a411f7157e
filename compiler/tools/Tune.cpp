// shardc tune: searches for the fastest layout of a recipe's ranks that fits, explains why it is
// fastest, and writes it as an overlay.
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/config/Mesh.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/TuneReport.h"
#include "compiler/tools/TuneSpace.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Summary.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

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
    llvm::errs() << fmt::format("\r\x1b[Kcompiled {}, at most {} left{}", compiled, left,
                                best ? ", best step " + formatDuration(best->time.step) : "");
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
  if (ExitStatus status = session.applyFlags(); status != kFine)
    return status;
  StopOnSignal ends; // the search
  return Tuner(options, session).run();
}

} // namespace

std::optional<std::string> tunedLayout(const std::string &recipe) {
  TuneOptions options;
  options.common.load.path = recipe;
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
