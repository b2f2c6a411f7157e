// shardc fit: prints memory by purpose, the memory of the device, the memory with other settings,
// and other splits of the same ranks.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/config/BatchRamp.h"
#include "compiler/lower/Lower.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/Overheads.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/FitSplits.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Summary.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

using Json = nlohmann::ordered_json;

void printMemory(const plan::Plan &plan) {
  const plan::Role &role = predict::largestRole(plan);
  if (plan.roles.size() > 1)
    printOut("of the role that needs most, {}: {}\n", role.name, role.why);
  plan::MemoryByPurpose memory = plan::memoryByPurpose(role);
  printOut("{:<18} {:>14} {:>14}\n", "purpose", "kept", "at the peak");
  for (size_t p = 0; p < memory.cells.size(); ++p)
    if (memory.cells[p] + memory.transient[p] > 0)
      printOut("{:<18} {:>14} {:>14}\n", plan::toString(static_cast<plan::Purpose>(p)),
               plan::formatBytes(memory.cells[p]), plan::formatBytes(memory.transient[p]));
  for (int a = 0; a < plan::kArenaCount; ++a) {
    auto arena = static_cast<plan::Arena>(a);
    printOut("arena {:<12} {:>14}\n", plan::toString(arena),
             plan::formatBytes(role.arenaBytes[static_cast<size_t>(a)]));
  }
  if (plan.job.checkpoint.inMemoryInterval > 0)
    printOut("{:<18} {:>14}  of host memory in addition to the plan, with --restarts\n",
             "saves in memory",
             plan::formatBytes(
                 (plan.job.checkpoint.asyncSave ? plan::kImagesBesideSave : plan::kImagesPerRank) *
                 plan::snapshotBytes(role)));
}

/// Text that marks bytes beyond the device's memory.
const char *fitsText(const config::Derived &d, int64_t bytes) {
  return d.memoryBytes > 0 && bytes > d.memoryBytes ? "  does not fit" : "";
}

void printDevice(const config::Derived &d, const plan::Plan &plan) {
  if (!d.gpu.has_value())
    return;
  const predict::Device &device = predict::device(*d.gpu);
  printOut("device {}: {} of {}{}\n", device.name.str(), plan::formatBytes(deviceBytesOf(plan)),
           d.memoryBytes > 0 ? plan::formatBytes(d.memoryBytes) : "whatever the machine has",
           !plan.job.derived.rates.empty()      ? " (with measured rates)"
           : device.measured || device.isHost() ? ""
                                                : " (figures of this device are not measured)");
  for (const std::string &line : predictionText(plan))
    printOut("  {}\n", line);
}

struct FitOptions {
  CommonOptions common;
  int64_t seconds = 60;
  bool asJson = false;
};

/// The alternatives that are compiled in addition to the recipe.
struct Comparison {
  std::optional<FitChange> withoutFp8;
  double secondsWithoutFp8 = 0; ///< step time without fp8; 0 on the host
  std::vector<FitChange> changes;
  Splits splits;
};

/// Shows on a terminal how many splits were tried, and stops when the time is up.
class Patience {
public:
  explicit Patience(int64_t seconds) : seconds_(seconds) {}
  ~Patience() {
    if (hasShown_)
      llvm::errs() << "\r\x1b[K";
  }
  bool goesOn(size_t tried, size_t all) {
    if (isTerminal_) {
      llvm::errs() << fmt::format("\r\x1b[Kcompiled {} of {} splits", tried, all);
      hasShown_ = true;
    }
    return std::chrono::steady_clock::now() - begin_ < std::chrono::seconds(seconds_);
  }

private:
  int64_t seconds_;
  bool isTerminal_ = llvm::errs().is_displayed(), hasShown_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Comparison compare(const config::Config &config, const plan::Plan &plan,
                   const FitOptions &options) {
  Comparison found;
  const std::vector<std::string> plain = {"mixed_precision.fp8=none", "model.fp8=none"};
  if (config.has(config::Opt::ModelFp8))
    if (std::optional<plan::Plan> other = planWith(options.common, plain)) {
      found.withoutFp8 = FitChange{plain, "without fp8", deviceBytesOf(*other)};
      found.secondsWithoutFp8 = predictedStep(*other).value_or(predict::StepTime()).step;
    }
  found.changes = tryChanges(config, options.common);
  Patience patience(options.seconds);
  if (config.derived().worldSize > 1)
    found.splits = trySplits(config, plan, options.common,
                             [&](size_t tried, size_t all) { return patience.goesOn(tried, all); });
  return found;
}

double tokensPerSecond(const config::Derived &d, double seconds) {
  return static_cast<double>(d.globalBatch * d.seqLength) / static_cast<double>(d.worldSize) /
         seconds;
}

/// Maximum number of splits that are printed.
constexpr size_t kSplitsMax = 12;

/// One line per split, fastest first after the recipe's own, with the settings that select it.
void printSplits(const config::Config &config, const Splits &splits, int64_t seconds) {
  if (splits.all.empty())
    return;
  const config::Derived &d = config.derived();
  bool hasExperts = config.has(config::Opt::ModelNumMoeExperts);
  auto expertColumn = [&](auto value) {
    return hasExperts ? fmt::format(" {:>4}", value) : std::string();
  };
  printOut("splits of the {} ranks, this recipe's first:\n"
           "  {:>4} {:>4} {:>4}{} {:>6} {:>14} {:>14} {:>12}\n",
           d.worldSize, "tp", "cp", "pp", expertColumn("ep"), "data", "memory", "step", "tokens/s");
  for (size_t i = 0; i < std::min(splits.all.size(), kSplitsMax); ++i) {
    const Split &split = splits.all[i];
    bool isTimed = split.seconds > 0;
    printOut("  {:>4} {:>4} {:>4}{} {:>6} {:>14} {:>14} {:>12}{}", split.tensor, split.context,
             split.pipeline, expertColumn(split.expert), split.data, plan::formatBytes(split.bytes),
             isTimed ? formatDuration(split.seconds) : "-",
             isTimed ? formatNumber(tokensPerSecond(d, split.seconds)) : "-",
             fitsText(d, split.bytes));
    for (const std::string &set : split.sets)
      printOut(" --set {}", set);
    printOut("\n");
  }
  if (splits.all.size() > kSplitsMax)
    printOut("  and {} slower ones\n", splits.all.size() - kSplitsMax);
  if (splits.numUntried > 0)
    printOut("  {} more were not compiled within {} s ('--seconds=N')\n", splits.numUntried,
             seconds);
}

void printText(const config::Config &config, const plan::Plan &plan, const FitOptions &options) {
  printMemory(plan);
  printDevice(config.derived(), plan);
  std::fflush(stdout); // printed now, since the comparison takes time
  Comparison found = compare(config, plan, options);
  if (found.withoutFp8)
    printOut("without fp8: {}{}\n", plan::formatBytes(found.withoutFp8->bytes),
             found.secondsWithoutFp8 > 0
                 ? ", predicted step " + formatDuration(found.secondsWithoutFp8)
                 : "");
  printOut("other settings:\n");
  for (const FitChange &change : found.changes)
    printOut("  {:<70} {:>12}{}\n", change.what, plan::formatBytes(change.bytes),
             fitsText(config.derived(), change.bytes));
  printSplits(config, found.splits, options.seconds);
  int64_t smallest = deviceBytesOf(plan);
  for (const FitChange &change : found.changes)
    smallest = std::min(smallest, change.bytes);
  for (const Split &split : found.splits.all)
    smallest = std::min(smallest, split.bytes);
  if (int64_t limit = config.derived().memoryBytes; limit > 0 && smallest > limit)
    printOut("none fits: the smallest needs {}. 'shardc tune' combines splits, "
             "sharding, micro batch and recomputation\n",
             plan::formatBytes(smallest));
}

void addTime(Json &json, const config::Derived &d, double seconds) {
  if (seconds <= 0) // the host, which has no predictions
    return;
  json["step_s"] = seconds;
  json["tokens_per_s"] = tokensPerSecond(d, seconds);
}

/// Adds the memory of an alternative, and the settings that it needs.
void addNeeds(Json &json, const config::Derived &d, int64_t bytes,
              const std::vector<std::string> &sets) {
  json["bytes"] = bytes;
  json["fits"] = d.memoryBytes == 0 || bytes <= d.memoryBytes;
  json["set"] = sets;
}

Json purposesJson(const plan::MemoryByPurpose &memory) {
  Json purposes = Json::array();
  for (size_t p = 0; p < memory.cells.size(); ++p)
    purposes.push_back({{"purpose", plan::toString(static_cast<plan::Purpose>(p))},
                        {"kept_bytes", memory.cells[p]},
                        {"peak_bytes", memory.transient[p]}});
  return purposes;
}

Json splitJson(const config::Derived &d, const Split &split) {
  Json json = {{"tensor", split.tensor},
               {"context", split.context},
               {"pipeline", split.pipeline},
               {"expert", split.expert},
               {"data", split.data}};
  addNeeds(json, d, split.bytes, split.sets);
  addTime(json, d, split.seconds);
  return json;
}

void printJson(const config::Config &config, const plan::Plan &plan, const FitOptions &options) {
  const config::Derived &d = config.derived();
  Comparison found = compare(config, plan, options);
  Json json = {{"device", d.gpu ? Json(config::spelling(*d.gpu).str()) : Json()},
               {"device_bytes", d.memoryBytes > 0 ? Json(d.memoryBytes) : Json()},
               {"ranks", d.worldSize}};
  addNeeds(json, d, deviceBytesOf(plan), {});
  addTime(json, d, predictedStep(plan).value_or(predict::StepTime()).step);
  json["purposes"] = purposesJson(plan::memoryByPurpose(predict::largestRole(plan)));
  Json changes = Json::array(), splits = Json::array();
  for (const FitChange &change : found.changes)
    addNeeds(changes.emplace_back(Json{{"what", change.what}}), d, change.bytes, change.sets);
  for (const Split &split : found.splits.all)
    splits.push_back(splitJson(d, split));
  json["changes"] = std::move(changes);
  json["splits"] = std::move(splits);
  json["splits_not_compiled"] = found.splits.numUntried;
  printOut("{}\n", toText(json, 2, /*isAscii=*/true));
}

/// If the global batch grows, the plan that needs the most memory; otherwise the only plan.
plan::Plan largestPlan(const config::Config &config, SourceManager &sources) {
  plan::Plan largest = placedPlan(config, sources);
  for (const config::BatchPhase &phase : config.derived().phases)
    if (phase != config.derived().phase)
      if (plan::Plan smaller = placedPlan(config::atPhase(config, phase), sources);
          deviceBytesOf(smaller) > deviceBytesOf(largest))
        largest = std::move(smaller);
  return largest;
}

/// Missing ops are errors here, since memory without them would be too low.
int runFit(const FitOptions &options) {
  Session session(options.common);
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load);
  if (!config)
    return session.finish();
  for (const lower::Missing &item : lower::findMissing(*config))
    session.diags().report(diag::MissingOp, config->range(item.option),
                           config::info(item.option).path,
                           config::toRecipeText(*config, item.option), item.what);
  if (session.diags().hasErrors())
    return session.finish();
  plan::Plan plan = largestPlan(*config, session.sources());
  (options.asJson ? printJson : printText)(*config, plan, options);
  reportSlowKernels(*config, session.sources(), plan, session.diags());
  reportFit(*config, plan, session.diags(), options.common);
  return session.finish();
}

} // namespace

void addFit(cli::Command &app, int &status) {
  auto options = std::make_shared<FitOptions>();
  cli::Command &command =
      app.addCommand("fit", "print memory by purpose, and changes that make a recipe fit");
  options->common.addTo(command);
  command.option("--seconds", options->seconds, "time for compiling other splits of the ranks")
      .positive()
      .showsDefault();
  command.flag("--json", options->asJson, "print one JSON document");
  command.onUse([options, &status] { status = runFit(*options); });
}

} // namespace shardc::tools
