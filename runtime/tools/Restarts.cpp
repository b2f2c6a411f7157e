#include "runtime/tools/Restarts.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/launch/RankReports.h"
#include "runtime/run/Metrics.h"

namespace shardc::tools {
namespace {

/// The complete saves in a folder that are newer than this object. The folder may also have saves
/// of earlier runs, which this run replaces.
class OwnSaves {
public:
  explicit OwnSaves(std::string root) : root_(std::move(root)), before_(stamps()) {}

  int64_t newest() const {
    int64_t newest = -1;
    for (const auto &[step, stamp] : stamps())
      if (auto old = before_.find(step); old == before_.end() || old->second != stamp)
        newest = std::max(newest, step);
    return newest;
  }

private:
  /// Distinguishes a file from an earlier one with the same name.
  using Stamp = std::tuple<dev_t, ino_t, int64_t, int64_t>;

  std::map<int64_t, Stamp> stamps() const {
    std::map<int64_t, Stamp> found;
    Result<std::vector<checkpoint::SavedIteration>> all = checkpoint::listIterations(root_);
    if (!all.isOk())
      return found;
    for (const checkpoint::SavedIteration &saved : *all) {
      struct stat info = {};
      if (::stat((saved.folder + "/.metadata").c_str(), &info) == 0)
        found[saved.iteration] = {info.st_dev, info.st_ino, info.st_mtim.tv_sec,
                                  info.st_mtim.tv_nsec};
    }
    return found;
  }

  std::string root_;
  std::map<int64_t, Stamp> before_;
};

/// Returns the first op that a report names: `'micro: all_gather %W (a.recipe:4)'`; empty if it
/// names none.
std::string opNamedBy(const std::string &text) {
  for (size_t at = text.find('\''); at != std::string::npos; at = text.find('\'', at + 1)) {
    size_t end = text.find('\'', at + 1);
    if (end == std::string::npos)
      return "";
    std::string quoted = text.substr(at + 1, end - at - 1);
    if (quoted.find(": ") != std::string::npos)
      return quoted;
    at = end;
  }
  return "";
}

std::string metricsLine(const launch::Restart &restart) {
  nlohmann::ordered_json line;
  line["restart"] = restart.attempt.restarts;
  line["step"] = std::max<int64_t>(restart.attempt.savedStep, 0);
  line["from_save"] = restart.attempt.savedStep >= 0;
  line["seconds_lost"] = restart.secondsLost;
  line["why"] = restart.cause.text;
  line["id"] = restart.cause.id;
  if (std::optional<int64_t> rank = launch::rankNamedBy(restart.cause.text))
    line["rank"] = *rank;
  if (std::string op = opNamedBy(restart.cause.text); !op.empty())
    line["op"] = op;
  return toText(line) + "\n";
}

/// Returns the number of torchrun's own restarts; 0 if there are none.
int64_t torchrunRestarts() {
  const char *text = ::getenv("TORCHELASTIC_MAX_RESTARTS");
  int64_t count = 0;
  if (text)
    std::from_chars(text, text + std::strlen(text), count);
  return count;
}

} // namespace

std::string whatIsLeftOf(const plan::Plan &plan) {
  const std::string &folder = plan.job.checkpoint.save;
  if (folder.empty())
    return "nothing was saved, since 'checkpoint.save' is not set";
  Result<std::optional<checkpoint::SavedIteration>> saved = checkpoint::latestIteration(folder);
  if (!saved.isOk() || !*saved)
    return fmt::format("'{}' has no complete checkpoint", folder);
  return fmt::format("a run can resume after step {} from '{}'", (*saved)->iteration, folder);
}

std::string whereFrom(int64_t savedStep, const std::string &folder, bool hasMemory) {
  std::string from = savedStep >= 0 ? fmt::format("after step {} from '{}'", savedStep, folder)
                                    : "where the run began, as it has saved nothing yet";
  return hasMemory ? from + ", unless memory has a newer step" : from;
}

Status addMetricsLine(const std::string &path, const std::string &line) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  ssize_t written = // keeps lines whole
      file.isOpen() ? ::write(file.fd(), line.data(), line.size()) : -1;
  if (written == static_cast<ssize_t>(line.size()))
    return Status::ok();
  return makeStatus(report::MetricsLost,
                    fmt::format("cannot write a line to '{}': {}", path, std::strerror(errno)));
}

std::optional<Report> refuseRestarts(const plan::Plan &plan, const RunToolOptions &options,
                                     Launcher launcher) {
  if (options.restarts == 0)
    return std::nullopt;
  if (launcher == Launcher::Torchrun && torchrunRestarts() > 0)
    return makeReport(report::RestartsTwice, options.restarts, torchrunRestarts());
  if (plan.job.validation.skipTrain)
    return makeReport(report::RestartsEvaluate, options.restarts);
  if (plan.job.checkpoint.save.empty())
    return makeReport(report::RestartsNeedSaves, options.restarts);
  return std::nullopt;
}

launch::RestartOptions leadRestarts(const plan::Plan &plan, const RunToolOptions &options) {
  launch::RestartOptions restarts;
  restarts.restartsMax = options.restarts;
  if (options.restarts == 0)
    return restarts;
  if (plan.job.checkpoint.saveInterval == 0)
    options.console.emit(makeReport(report::RestartsFromBegin));
  auto saves = std::make_shared<OwnSaves>(plan.job.checkpoint.save);
  restarts.newestSave = [saves] { return saves->newest(); };
  restarts.note = [console = options.console, metrics = options.metrics,
                   folder = plan.job.checkpoint.save,
                   hasMemory =
                       plan.job.checkpoint.inMemoryInterval > 0](const launch::Restart &restart) {
    std::string from = whereFrom(restart.attempt.savedStep, folder, hasMemory);
    console.emit(makeReport(report::Restarted, restart.attempt.restarts, restart.restartsMax,
                            restart.cause.text, from, restart.secondsLost, restart.attempt.pause));
    if (metrics.empty())
      return;
    if (Status status = addMetricsLine(metrics, metricsLine(restart)); !status.isOk())
      console.emit(status.report());
  };
  return restarts;
}

std::function<void(const launch::LateRank &, int64_t, const launch::Hello &)>
noteLateIn(const RunToolOptions &options) {
  if (options.metrics.empty() || run::metricsCommand(options.metrics)) // commands are rank 0's
    return nullptr;
  return [console = options.console, path = options.metrics](
             const launch::LateRank &late, int64_t step, const launch::Hello &hello) {
    nlohmann::ordered_json line;
    line["late_rank"] = late.rank;
    line["step"] = step;
    line["host"] = hello.host;
    if (!hello.gpu.empty())
      line["gpu"] = hello.gpu;
    line["waits"] = late.share;
    line["others_wait"] = late.others;
    line["seconds"] = late.seconds;
    line["id"] = report::RankLate.info().id;
    if (Status status = addMetricsLine(path, toText(line) + "\n"); !status.isOk())
      console.emit(status.report());
  };
}

plan::Plan continuedPlan(const plan::Plan &plan, int64_t savedStep) {
  plan::Plan out = plan;
  auto &options = out.job.checkpoint;
  options.load = options.save;
  options.ckptStep = savedStep;
  if (!plan.job.peft.scheme) // no save has the base model of adapters
    options.pretrainedCheckpoint.clear();
  options.finetune = false;
  options.loadOptim = true;
  return out;
}

} // namespace shardc::tools
