// Signals that ask a run to end after a step.
#pragma once

#include <algorithm>
#include <csignal>
#include <vector>

namespace shardc {

/// A further end signal of this process, which its job names; 0 if there is none.
inline int &ownEndSignal() {
  static int number = 0;
  return number;
}

/// SIGINT, SIGTERM and SIGHUP, the last one only where it is not ignored: `nohup` starts programs
/// that outlive their terminal. And the job's own.
inline std::vector<int> endSignals() {
  std::vector<int> signals = {SIGINT, SIGTERM};
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
    signals.push_back(SIGHUP);
  if (int own = ownEndSignal(); own != 0 && std::ranges::find(signals, own) == signals.end())
    signals.push_back(own);
  return signals;
}

/// Whether a second one of the kind asks to end at once. A shell that ends and its terminal both
/// send SIGHUP.
inline bool countsTwice(int number) { return number != SIGHUP; }

} // namespace shardc
