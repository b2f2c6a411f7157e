#include "compiler/tools/CkptTools.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <unistd.h>

#include <fmt/format.h>

#include "compiler/tools/Session.h"
#include "runtime/base/Crc32.h"
#include "runtime/base/Launcher.h"
#include "runtime/base/Output.h"
#include "runtime/base/ParseNumber.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/CheckpointView.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace fs = std::filesystem;
using checkpoint::SaveTarget;

namespace {

constexpr size_t kValueMax = 60; ///< maximum characters of a value in a line of a report
constexpr int kThreadsMax = 8;
constexpr int kRanksMax = 65'536;

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t stopSignal = 0; ///< the received signal
checkpoint::Interruption interruption;     ///< interrupts saves

/// A second signal ends the process at once, unless the process is already removing the files that
/// it wrote.
void stop(int signal) {
  if (stopSignal != 0 && !interruption.isClearingUp()) {
    ::signal(signal, SIG_DFL);
    ::raise(signal); // delivered when this handler returns
    return;
  }
  stopSignal = signal;
  interruption.request();
}

/// A short hash of the job, for a file name.
std::string jobOf(const Environment &environment, const LauncherVariables &launcher) {
  std::string text;
  for (const char *name : launcher.job)
    text += fmt::format("{}\n", name ? environment.text(name) : "");
  return fmt::format("{:08x}", crc32(0, text.data(), text.size()));
}

/// The iteration in a folder's name such as `iter_0000100`.
std::optional<int64_t> iterationInName(const std::string &name) {
  return name.starts_with("iter_") ? parseCount(std::string_view(name).substr(5)) : std::nullopt;
}

fs::path withoutTrailingSlash(const std::string &text) {
  fs::path path = fs::path(text).lexically_normal();
  return path.filename().empty() && path.has_parent_path() ? path.parent_path() : path;
}

Status checkFree(const SaveTarget &target) {
  std::error_code error;
  if (fs::exists(target.path(), error))
    return makeStatus(report::OutputExists, target.path());
  return Status::ok();
}

/// The folder of checkpoints that will contain an output.
std::string rootOf(const fs::path &out) {
  std::string name = out.filename().string(), parent = out.parent_path().string();
  if (!iterationInName(name) && name != "release")
    return out.string();
  return parent.empty() ? "." : parent;
}

/// Removes leftovers of interrupted saves. Without the lock they may belong to a running command,
/// so nothing is removed.
Status clearAway(const std::string &root, const checkpoint::FolderLock &lock) {
  return lock.isHeld() ? checkpoint::recoverInterrupted(root, reportCkpt, ckptObservers())
                       : Status::ok();
}

} // namespace

std::string shortened(const std::string &text) {
  return text.size() <= kValueMax ? text : text.substr(0, kValueMax) + "...";
}

checkpoint::Observers ckptObservers() { return {.interruption = &interruption}; }

int finishCkpt(const Status &status) {
  if (!status.isOk())
    reportCkpt(status.report());
  return exitStatusOf(status);
}

StopOnSignal::StopOnSignal() {
  struct sigaction action = {}, before = {};
  action.sa_handler = stop;
  action.sa_flags = SA_RESTART;
  for (int signal : kStopSignals)
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
}

StopOnSignal::~StopOnSignal() {
  struct sigaction current = {};
  for (int signal : kStopSignals)
    if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == stop)
      ::signal(signal, SIG_DFL);
}

bool StopOnSignal::isAsked() { return stopSignal != 0; }

int StopOnSignal::finish(const Status &status) {
  if (status.isOk() || stopSignal == 0)
    return finishCkpt(status);
  constexpr int kSignalStatus = 128; // the convention of shells
  int signal = stopSignal;
  reportCkpt(makeReport(report::Interrupted, signal, ::strsignal(signal)));
  return kSignalStatus + signal;
}

void reportCkpt(const Report &report) {
  printError("{}{}\n", isWhole(report) ? "" : "shardc: ", lineOf(report));
}

int defaultThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadsMax);
}

Result<SaveTarget> outputTarget(const std::string &out, int64_t iteration) {
  fs::path path = withoutTrailingSlash(out);
  std::string name = path.filename().string();
  SaveTarget target = SaveTarget::iteration(rootOf(path), iteration);
  if (std::optional<int64_t> named = iterationInName(name); named || name == "release")
    target = {target.root, name, named ? std::to_string(*named) : name};
  RETURN_IF_ERROR(checkFree(target));
  RETURN_IF_ERROR(checkpoint::checkSaveRoot(target.root));
  Result<std::optional<checkpoint::SavedIteration>> latest =
      checkpoint::latestIteration(target.root);
  std::optional<int64_t> own = parseCount(target.trackerText);
  if (own && latest.isOk() && *latest && (*latest)->iteration > *own)
    target.trackerText.clear();
  target.observers = ckptObservers();
  return target;
}

void reportMade(const std::string &in, const SaveTarget &target) {
  printOut("'{}' is now '{}': {}\n", plan::printable(in), plan::printable(target.path()),
           contentsText(target.path()));
  if (target.trackerText.empty())
    reportCkpt(makeReport(report::LaterCheckpoint, target.root));
}

Status lockTarget(const SaveTarget &target, checkpoint::FolderLock &lock) {
  ASSIGN_OR_RETURN(lock, checkpoint::FolderLock::take(target.root, reportCkpt));
  RETURN_IF_ERROR(clearAway(target.root, lock));
  return checkFree(target); // the previous holder of the lock may have created it
}

Status lockOutput(const std::string &folder, checkpoint::FolderLock &lock) {
  RETURN_IF_ERROR(checkpoint::checkOutside(folder));
  ASSIGN_OR_RETURN(lock, checkpoint::FolderLock::takeBeside(folder, reportCkpt));
  return Status::ok();
}

Result<int64_t> iterationOf(const std::string &folder) {
  ASSIGN_OR_RETURN(checkpoint::CheckpointFormat format, checkpoint::detectFormat(folder));
  if (format == checkpoint::CheckpointFormat::TorchDist) {
    ASSIGN_OR_RETURN(auto dist, checkpoint::TorchDistCheckpoint::open(folder, true));
    for (const checkpoint::CommonLeaf &leaf : dist.common())
      if (checkpoint::nameOfPath(leaf.path) == "iteration")
        if (std::optional<int64_t> value = dist.commonGraph().asInteger(leaf.value))
          return *value;
  } else {
    ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(folder));
    if (reader.findObject("iteration") != nullptr) {
      ASSIGN_OR_RETURN(checkpoint::ObjectValue object, reader.readObject("iteration"));
      if (std::optional<int64_t> value = object.graph().asInteger(object.root()))
        return *value;
    }
  }
  return iterationInName(withoutTrailingSlash(folder).filename().string()).value_or(0);
}

Result<CkptEnds> findEnds(const std::string &in, const std::string &out) {
  ASSIGN_OR_RETURN(std::string found, checkpoint::findCheckpoint(in));
  ASSIGN_OR_RETURN(int64_t iteration, iterationOf(found));
  ASSIGN_OR_RETURN(SaveTarget target, outputTarget(out, iteration));
  return CkptEnds{std::move(found), std::move(target)};
}

Result<JobRanks> JobRanks::fromEnvironment() {
  JobRanks ranks;
  Environment environment(::getenv);
  const LauncherVariables *launcher = findLauncher(environment);
  if (!launcher)
    return ranks;
  ASSIGN_OR_RETURN(int64_t rank, environment.number(launcher->rank, 0, kRanksMax));
  ASSIGN_OR_RETURN(int64_t count, environment.number(launcher->worldSize, 1, kRanksMax));
  if (rank >= count)
    return makeStatus(StatusCode::InvalidInput,
                      "the environment says {}={} and {}={}, which is not a valid rank and size",
                      launcher->rank, rank, launcher->worldSize, count);
  ranks.rank_ = static_cast<int>(rank);
  ranks.worldSize_ = static_cast<int>(count);
  ranks.job_ = jobOf(environment, *launcher);
  return ranks;
}

std::optional<int> leftToFirst() {
  Result<JobRanks> ranks = JobRanks::fromEnvironment();
  if (!ranks.isOk())
    return finishCkpt(ranks.status());
  if (ranks->isFirst())
    return std::nullopt;
  reportCkpt(makeReport(report::RankIdle, ranks->rank(), ranks->worldSize()));
  return kFine;
}

int runOnFirst(const std::function<Status()> &work) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  StopOnSignal stop;
  return StopOnSignal::finish(work());
}

int runOnRanks(const RankWork &work) {
  Result<JobRanks> ranks = JobRanks::fromEnvironment();
  if (!ranks.isOk())
    return finishCkpt(ranks.status());
  StopOnSignal stop;
  if (Status status = ranks->join(work.out); !status.isOk())
    return StopOnSignal::finish(status);
  Result<SaveTarget> target = work.findTarget();
  Status status = ranks->begin(target);
  if (!status.isOk()) {
    ranks->leave(Status::ok()); // all ranks know the failure
    return ranks->finish(status);
  }
  {
    ProgressBar bar(work.what, ranks->isFirst());
    status =
        work.convert(*target, ranks->convertRank(ranks->threadsOr(work.threads)), bar.callback());
  }
  ranks->leave(status);
  if (ranks->isFirst())
    work.remark();
  if (status.isOk() && ranks->isFirst())
    reportMade(work.in, *target);
  return ranks->finish(status);
}

Status JobRanks::join(const std::string &out) {
  if (worldSize_ == 1)
    return Status::ok();
  root_ = rootOf(withoutTrailingSlash(out));
  RETURN_IF_ERROR(checkpoint::checkSaveRoot(root_));
  std::error_code error;
  isRootNew_ = isFirst() && !fs::exists(root_, error);
  std::string place = fmt::format("{}/{}", root_, checkpoint::meetingPlace(job_));
  ASSIGN_OR_RETURN(barrier_, checkpoint::ProcessBarrier::join(place, rank_, worldSize_,
                                                              {.observers = ckptObservers()}));
  return Status::ok();
}

Status JobRanks::begin(const Result<SaveTarget> &target) {
  Status status = target.status();
  if (status.isOk() && isFirst())
    status = lockTarget(*target, lock_);
  return barrier_ ? barrier_->meet(status) : status;
}

void JobRanks::leave(const Status &status) {
  if (barrier_ && !status.isOk() && barrier_->meetings() <= 1)
    static_cast<void>(barrier_->meet(status)); // tells the ranks that wait there
  barrier_.reset();
  lock_ = {};
  if (isRootNew_)
    ::rmdir(root_.c_str()); // fails if the folder is not empty
}

int JobRanks::finish(const Status &status) const {
  return isFirst() ? StopOnSignal::finish(status) : exitStatusOf(status);
}

checkpoint::ConvertRank JobRanks::convertRank(int threads) const {
  checkpoint::ConvertRank rank{rank_, worldSize_, threads, {}};
  if (barrier_)
    rank.barrier = [barrier = barrier_.get()](Status status) { return barrier->meet(status); };
  return rank;
}

ProgressBar::ProgressBar(std::string what, bool isShown)
    : what_(std::move(what)), isShown_(isShown && ::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (hasLine_)
    printError("\r\x1b[K");
}

checkpoint::ConvertProgress ProgressBar::callback() {
  if (!isShown_)
    return {};
  return [this](int64_t done, int64_t total) { show(done, total); };
}

void ProgressBar::show(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 30;
  int64_t percent = total > 0 ? done * 100 / total : 100;
  if (percent == lastPercent_)
    return;
  lastPercent_ = percent;
  hasLine_ = true;
  auto filled = static_cast<size_t>(percent * kWidth / 100);
  printError("\r{} [{}{}] {:3}% {} of {}", what_, std::string(filled, '#'),
             std::string(static_cast<size_t>(kWidth) - filled, ' '), percent,
             plan::formatBytes(done), plan::formatBytes(total));
  std::fflush(stderr);
}

std::string contentsText(const std::string &folder) {
  Result<checkpoint::CheckpointReader> reader = checkpoint::CheckpointReader::open(folder);
  if (!reader.isOk())
    return plan::printable(reader.status().message());
  const checkpoint::Metadata &metadata = reader->metadata();
  std::set<std::string> files;
  int64_t bytes = 0;
  for (const checkpoint::TensorMeta &tensor : metadata.tensors) {
    bytes += checkpoint::tensorBytes(tensor.type, tensor.shape).value_or(0);
    for (const checkpoint::Chunk &chunk : tensor.chunks)
      files.insert(chunk.record.file);
  }
  for (const checkpoint::ObjectMeta &object : metadata.objects)
    files.insert(object.record.file);
  return fmt::format("{} tensors, {}, {} objects in {} files", metadata.tensors.size(),
                     plan::formatBytes(bytes), metadata.objects.size(), files.size());
}

} // namespace shardc::tools
