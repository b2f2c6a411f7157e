#include "runtime/tools/Watch.h"

#include <chrono>
#include <csignal>

#include <unistd.h>

#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/StallClock.h"
#include "runtime/launch/Supervisor.h"

namespace shardc::tools {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(250);
constexpr int kFailureStatus = 3;

} // namespace

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

/// A rank that does not come back from a kernel or a read leaves the others waiting: nothing in
/// this process can end that, so the process ends.
void Watch::run() {
  sigset_t all; // signals are the main thread's
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  double limit = 60 * executable_.plan().jobFloat("dist.distributed_timeout_minutes", 10);
  double beat = std::chrono::duration<double>(kBeat).count(), clock = 0; // a pause does not count
  std::vector<launch::StallClock> ranks(executable_.rankCount());
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kBeat, [&] { return isStopping_; })) {
    clock += beat;
    bool isStuck = false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].update(read(r), clock);
      isStuck = isStuck || ranks[r].longestStay(clock) > limit;
    }
    if (!isStuck)
      continue;
    std::vector<std::vector<uint32_t>> words;
    for (const launch::StallClock &rank : ranks)
      words.push_back(rank.last().words);
    launch::sayError(fmt::format(
        "{}; {:.4g} min, dist.distributed_timeout_minutes, are over",
        exec::ProgressMap(executable_.plan()).explainStall(words, /*silent=*/-1), limit / 60));
    ::_exit(kFailureStatus);
  }
}

} // namespace shardc::tools
