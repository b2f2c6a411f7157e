#include "runtime/tools/Signals.h"

#include <csignal>
#include <cstring>
#include <unistd.h>

namespace shardc::tools {
namespace {

constexpr int kFailureStatus = 3;
std::atomic<int> requests{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler uses it");

void say(const char *text) {
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void onSignal(int) {
  if (requests.fetch_add(1) > 0) {
    say("\nshardc-run: stopped at once; nothing was saved\n");
    ::_exit(kFailureStatus);
  }
  say("\nshardc-run: ending after this step; once more ends at once\n");
}

} // namespace

const std::atomic<int> &watchSignals() {
  struct sigaction action = {};
  action.sa_handler = onSignal;
  action.sa_flags = SA_RESTART; // reads and writes under way go on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return requests;
}

} // namespace shardc::tools
