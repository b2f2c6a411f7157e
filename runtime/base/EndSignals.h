// Signals that request the end of a run after the current step.
#pragma once

#include <algorithm>
#include <csignal>
#include <vector>

namespace shardc {

/// The numbers of the enumerators of ExitSignal in runtime/plan/JobEnums.def, in their order.
inline constexpr int kExitSignals[] = {SIGTERM, SIGINT,  SIGHUP,  SIGUSR1,
                                       SIGUSR2, SIGQUIT, SIGALRM, SIGXCPU};

/// An additional end signal, which the job names; 0 if there is none.
inline int &ownEndSignal() {
  static int number = 0;
  return number;
}

/// SIGINT, SIGTERM, SIGHUP and the job's own signal. SIGHUP is left out if it is ignored, since
/// `nohup` does that for programs that must outlive their terminal.
inline std::vector<int> endSignals() {
  std::vector<int> signals = {SIGINT, SIGTERM};
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
    signals.push_back(SIGHUP);
  if (int own = ownEndSignal(); own != 0 && std::ranges::find(signals, own) == signals.end())
    signals.push_back(own);
  return signals;
}

/// Whether a second signal of this kind requests an immediate end. SIGHUP does not, since a shell
/// that ends and its terminal both send it.
inline bool countsTwice(int number) { return number != SIGHUP; }

} // namespace shardc
