// Watches the progress of this process's ranks while they run. If other processes have ranks, the
// progress is sent to rank 0's supervisor. If all ranks are here, the watch ends a run that is
// stuck, or that was asked to end and cannot.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/ProgressWord.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/exec/Executable.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/Supervisor.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Signals.h"

namespace shardc::tools {

/// Watches the rank of a single-rank process before it has streams, until this object is destroyed
/// or a ProgressWatch replaces it. In the meantime, messages name the channel that is being
/// created.
class SetUpWatch {
public:
  /// `process` must outlive the watch.
  explicit SetUpWatch(ProcessContext &process) : process_(process) {
    if (process.client)
      process.client->watch([&process] {
        return launch::RankProgress{.steps = 0,
                                    .words = {process.making.load(std::memory_order_relaxed)},
                                    .phase = process.phase.load(std::memory_order_relaxed)};
      });
  }

  ~SetUpWatch() {
    if (process_.client)
      process_.client->stopWatching();
  }

private:
  ProcessContext &process_;
};

class ProgressWatch {
public:
  /// All arguments must outlive the watch. `isWriting` returns whether files of a save are being
  /// written; any thread may call it.
  ProgressWatch(exec::Executable &executable, ProcessContext &process,
                std::function<bool()> isWriting)
      : executable_(executable), process_(process), isWriting_(std::move(isWriting)),
        last_(executable.rankCount()) {}

  ~ProgressWatch() {
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

  /// Begins to watch. Exhausted if no thread can be started.
  Status start() {
    if (!process_.client)
      return startThread(thread_, [this] { run(); });
    process_.client->watch([this] { return read(0); });
    return Status::ok();
  }

private:
  static constexpr auto kBeat = std::chrono::milliseconds(250);
  /// The share of a core from which on a process counts as computing; a waiting process uses about
  /// a hundredth.
  static constexpr double kBusyShare = 0.05;

  static double nowSeconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  /// Returns the processor time of this process in seconds, summed over all cores.
  static double secondsUsed() {
    timespec used = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  }

  /// Ends the process if work has stopped. If a rank does not return from a kernel, the others
  /// wait, and nothing in this process can end that. Ranks share cores here, so one may wait for a
  /// long time while others work; work has stopped only if no rank advances. A run that was asked
  /// to end has a shorter limit, since it would end after the current step if that step ended.
  void run() {
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

  launch::RankProgress read(size_t rank) {
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
  void noteActivity() {
    double now = nowSeconds(), used = secondsUsed();
    if (now - lookedAt_ < std::chrono::duration<double>(kBeat).count() / 2)
      return; // too short for a decision
    if (isWriting_() || used - usedThen_ > kBusyShare * (now - lookedAt_))
      ++activity_;
    lookedAt_ = now;
    usedThen_ = used;
  }

  [[noreturn]] void end(const std::string &why) {
    std::vector<std::vector<uint32_t>> words;
    for (const launch::RankProgress &rank : last_)
      words.push_back(rank.words);
    process_.console.emit(makeReport(
        report::RankStuck,
        fmt::format("{}; {}",
                    exec::ProgressMap(executable_.plan()).explainStall(words, /*silent=*/-1),
                    why)));
    ::_exit(kFailureStatus);
  }

  exec::Executable &executable_;
  ProcessContext &process_;
  std::function<bool()> isWriting_;
  // Used only by the reading thread:
  std::vector<launch::RankProgress> last_;
  uint64_t activity_ = 0;
  double lookedAt_ = 0, usedThen_ = 0; ///< seconds at the last check: clock, and processor time
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool isStopping_ = false;
  std::thread thread_;
};

} // namespace shardc::tools
