// SIGINT, SIGTERM, SIGHUP and train.exit_signal request a clean end. A second signal, except
// SIGHUP, ends the process at once. Before holdSignals there is nothing to finish, and the first
// signal ends the process.
#pragma once

#include <atomic>

#include "runtime/plan/Job.h"

namespace shardc::tools {

/// Installs the handlers and unblocks the signals, so that pending ones are delivered. Must be
/// called first.
void watchSignals();

/// From now on a first request is only counted, so that the run ends after a step. `isQuiet`: the
/// parent process prints messages about requests. Writing to a closed pipe becomes an error of that
/// call instead of a signal.
void holdSignals(bool isQuiet);

/// Also handles the signal that the job names. Must be called before processes are started.
void watchSignal(plan::Job::ExitSignal signal);

/// Counts as a first request if there was none, without a message.
void requestEnd();

/// Returns the number of requests so far.
const std::atomic<int> &stopRequests();

} // namespace shardc::tools
