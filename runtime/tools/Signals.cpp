#include "runtime/tools/Signals.h"

#include <csignal>
#include <unistd.h>

#include "runtime/base/EndSignals.h"
#include "runtime/base/ExitStatus.h"
#include "runtime/base/Notice.h"
#include "runtime/base/Reports.h"

namespace shardc::tools {
namespace {

std::atomic<int> requests{0};
/// Counts signals by origin: a signal to a process group arrives from its sender and also from the
/// parent, which forwards it, but is one request.
std::atomic<int> received[2] = {0, 0};
std::atomic<bool> areHeld{false};
std::atomic<bool> areQuiet{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "the handler uses them");

template <typename Row> void emit(Row row) {
  if (!areQuiet.load())
    writeNotice(row);
}

void onSignal(int number, siginfo_t *info, void *) {
  if (!areHeld.load()) {
    emit(report::StoppedBeforeSteps);
    ::_exit(0);
  }
  if (!countsTwice(number) && requests.load() > 0)
    return;
  int mine = received[info->si_pid == ::getppid() ? 1 : 0].fetch_add(1) + 1;
  if (mine <= requests.load())
    return; // one request that arrived from its sender and from the parent
  requests.store(mine);
  if (mine > 1) {
    emit(report::StoppedAtOnce);
    ::_exit(kFailureStatus);
  }
  emit(report::EndsAfterStep);
}

} // namespace

void watchSignals() {
  struct sigaction action = {};
  action.sa_sigaction = onSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO; // current reads and writes continue
  sigemptyset(&action.sa_mask);
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : endSignals()) {
    sigaction(number, &action, nullptr);
    sigaddset(&signals, number);
  }
  // The program that executed this one has blocked them until here.
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

void holdSignals(bool isQuiet) {
  std::signal(SIGPIPE, SIG_IGN); // the reader of the output may end before the run
  areQuiet.store(isQuiet);
  areHeld.store(true);
}

void watchSignal(plan::Job::ExitSignal signal) {
  ownEndSignal() = kExitSignals[static_cast<size_t>(signal)];
  watchSignals();
}

void requestEnd() {
  int none = 0;
  requests.compare_exchange_strong(none, 1);
}

const std::atomic<int> &stopRequests() { return requests; }

} // namespace shardc::tools
