// Signals that ask a run to end after a step.
#pragma once

#include <csignal>
#include <vector>

namespace shardc {

/// SIGINT, SIGTERM and SIGHUP, the last one only where it is not ignored: `nohup` starts programs
/// that outlive their terminal.
inline std::vector<int> endSignals() {
  std::vector<int> signals = {SIGINT, SIGTERM};
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
    signals.push_back(SIGHUP);
  return signals;
}

/// Whether a second one of the kind asks to end at once. A shell that ends and its terminal both
/// send SIGHUP.
inline bool countsTwice(int number) { return number != SIGHUP; }

} // namespace shardc
