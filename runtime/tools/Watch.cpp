#include "runtime/tools/Watch.h"

#include <algorithm>
#include <chrono>
#include <csignal>

#include <unistd.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/Supervisor.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(250);
constexpr int kFailureStatus = 3;

} // namespace

SetUpWatch::SetUpWatch(Crew &crew) : crew_(crew) {
  if (crew.member)
    crew.member->watch([&crew] {
      return launch::Snapshot{.steps = 0, .words = {crew.making.load(std::memory_order_relaxed)}};
    });
}

SetUpWatch::~SetUpWatch() {
  if (crew_.member)
    crew_.member->stopWatching();
}

Watch::Watch(exec::Executable &executable, Crew &crew) : executable_(executable), crew_(crew) {
  if (crew.member)
    crew.member->watch([this] { return read(0); });
  else if (executable.rankCount() > 1)
    thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  if (crew_.member)
    crew_.member->stopWatching();
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

launch::Snapshot Watch::read(size_t rank) const {
  launch::Snapshot snapshot;
  snapshot.steps = crew_.steps.load(std::memory_order_relaxed);
  auto words = executable_.progress(rank);
  snapshot.words.assign(words.begin(), words.end());
  return snapshot;
}

/// A rank that does not come back from a kernel leaves the others waiting: nothing in this process
/// can end that, so the process ends. Ranks share cores here, so one may wait for long while others
/// work; only where none of them moves has work stopped.
void Watch::run() {
  sigset_t all; // signals are the main thread's
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  double limit = timeoutSeconds(executable_.plan());
  double beat = std::chrono::duration<double>(kBeat).count(), still = 0; // a pause does not count
  std::vector<launch::Snapshot> last(executable_.rankCount());
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kBeat, [&] { return isStopping_; })) {
    bool isInside = false;
    still += beat;
    for (size_t r = 0; r < last.size(); ++r) {
      launch::Snapshot now = read(r);
      if (now != last[r])
        still = 0;
      isInside = isInside || std::ranges::any_of(now.words, ProgressWord::isInside);
      last[r] = std::move(now);
    }
    if (still <= limit || !isInside)
      continue;
    std::vector<std::vector<uint32_t>> words;
    for (const launch::Snapshot &rank : last)
      words.push_back(rank.words);
    launch::sayError(fmt::format(
        "{}; {:.4g} min, dist.distributed_timeout_minutes, are over",
        exec::ProgressMap(executable_.plan()).explainStall(words, /*silent=*/-1), limit / 60));
    ::_exit(kFailureStatus);
  }
}

} // namespace shardc::tools
