#include "runtime/tools/Signals.h"

#include <csignal>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
#include "runtime/launch/Notice.h"

namespace shardc::tools {
namespace {

std::atomic<int> requests{0};
/// By origin: a signal to a process group arrives from its sender and again from the parent that
/// forwards it, but is one request.
std::atomic<int> received[2] = {0, 0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler uses it");

bool isQuietNow = false;

template <typename Row> void tell(Row row) {
  if (!isQuietNow)
    launch::writeNotice(row);
}

void onSignal(int, siginfo_t *info, void *) {
  int mine = received[info->si_pid == ::getppid() ? 1 : 0].fetch_add(1) + 1;
  if (mine <= requests.load())
    return; // the same request by the other way
  requests.store(mine);
  if (mine > 1) {
    tell(report::StoppedAtOnce);
    ::_exit(kFailureStatus);
  }
  tell(report::EndsAfterStep);
}

} // namespace

const std::atomic<int> &watchSignals(bool isQuiet) {
  isQuietNow = isQuiet;
  struct sigaction action = {};
  action.sa_sigaction = onSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO; // current reads and writes continue
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return requests;
}

const std::atomic<int> &stopRequests() { return requests; }

} // namespace shardc::tools
