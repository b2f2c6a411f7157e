#include "runtime/tools/ProgressWatch.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>

#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/ProgressWord.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/Supervisor.h"
#include "runtime/tools/Signals.h"

namespace shardc::tools {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(250);
/// The share of a core from which on a process counts as computing; a waiting process uses about a
/// hundredth.
constexpr double kBusyShare = 0.05;

double nowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns the processor time of this process in seconds, summed over all cores.
double secondsUsed() {
  timespec used = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

} // namespace

SetUpWatch::SetUpWatch(ProcessContext &process) : process_(process) {
  if (process.client)
    process.client->watch([&process] {
      return launch::RankProgress{.steps = 0,
                                  .words = {process.making.load(std::memory_order_relaxed)},
                                  .phase = process.phase.load(std::memory_order_relaxed)};
    });
}

SetUpWatch::~SetUpWatch() {
  if (process_.client)
    process_.client->stopWatching();
}

ProgressWatch::ProgressWatch(exec::Executable &executable, ProcessContext &process,
                             std::function<bool()> isWriting)
    : executable_(executable), process_(process), isWriting_(std::move(isWriting)),
      last_(executable.rankCount()) {}

Status ProgressWatch::start() {
  if (!process_.client)
    return startThread(thread_, [this] { run(); });
  process_.client->watch([this] { return read(0); });
  return Status::ok();
}

ProgressWatch::~ProgressWatch() {
  if (process_.client)
    process_.client->stopWatching();
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

launch::RankProgress ProgressWatch::read(size_t rank) {
  launch::RankProgress position;
  position.steps = process_.steps.load(std::memory_order_relaxed);
  exec::RankWords words = executable_.progress(rank);
  auto streams = static_cast<std::ptrdiff_t>(executable_.plan().streams.size());
  position.words.assign(words.begin(), words.begin() + streams);
  if (words.back() != 0)
    position.words.push_back(words.back());
  position.isAsked = stopRequests().load(std::memory_order_relaxed) > 0;
  if (position.isAsked)
    noteActivity();
  position.activity = activity_;
  position.phase = process_.phase.load(std::memory_order_relaxed);
  return position;
}

/// Detects activity that progress words do not show: kernels that run for minutes, a checkpoint
/// that is being read, files that are being written.
void ProgressWatch::noteActivity() {
  double now = nowSeconds(), used = secondsUsed();
  if (now - lookedAt_ < std::chrono::duration<double>(kBeat).count() / 2)
    return; // too short for a decision
  if (isWriting_() || used - usedThen_ > kBusyShare * (now - lookedAt_))
    ++activity_;
  lookedAt_ = now;
  usedThen_ = used;
}

/// Ends the process if work has stopped. If a rank does not return from a kernel, the others wait,
/// and nothing in this process can end that. Ranks share cores here, so one may wait for a long
/// time while others work; work has stopped only if no rank advances. A run that was asked to end
/// has a shorter limit, since it would end after the current step if that step ended.
void ProgressWatch::run() {
  sigset_t all; // the main thread handles signals
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  double limit = timeoutSeconds(executable_.plan());
  // `still` counts beats, not wall time: if this process is paused, the ranks stand still too.
  double beat = std::chrono::duration<double>(kBeat).count(), still = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kBeat, [&] { return isStopping_; })) {
    bool isInside = false, isAsked = false;
    still += beat;
    for (size_t r = 0; r < last_.size(); ++r) {
      launch::RankProgress now = read(r);
      if (now != last_[r])
        still = 0;
      isInside = isInside || std::ranges::any_of(now.words, ProgressWord::isInside);
      isAsked = now.isAsked;
      last_[r] = std::move(now);
    }
    if (isAsked && still > launch::kAskedSeconds)
      end(fmt::format("the run was asked to end, but it has made no progress for {:.3g} s",
                      launch::kAskedSeconds));
    if (isInside && last_.size() > 1 && still > limit)
      end(fmt::format("the timeout of {:.4g} min (dist.distributed_timeout_minutes) has expired",
                      limit / 60));
  }
}

void ProgressWatch::end(const std::string &why) {
  std::vector<std::vector<uint32_t>> words;
  for (const launch::RankProgress &rank : last_)
    words.push_back(rank.words);
  process_.console.emit(makeReport(
      report::RankStuck,
      fmt::format("{}; {}",
                  exec::ProgressMap(executable_.plan()).explainStall(words, /*silent=*/-1), why)));
  ::_exit(kFailureStatus);
}

} // namespace shardc::tools
