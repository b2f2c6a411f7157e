// SIGINT, SIGTERM, SIGHUP and train.exit_signal request a clean end; a second one but SIGHUP ends
// the process at once. Before a run holds them there is nothing to finish, and the first ends the
// process.
#pragma once

#include <atomic>

#include "runtime/plan/Job.h"

namespace shardc::tools {

/// Installs the handlers, and lets signals in that arrived before. Call it first.
void watchSignals();

/// From now on a first request is only counted, and the run ends after a step. With `isQuiet` a
/// parent says what becomes of a request. Writing to where nobody reads any more is an
/// error of that call, and no signal.
void holdSignals(bool isQuiet);

/// Takes a signal that the job names beside the others. Call it before processes are started.
void watchSignal(plan::Job::ExitSignal signal);

/// A first request, if there was none, without a word.
void requestEnd();

/// Says how many requests there were.
const std::atomic<int> &stopRequests();

} // namespace shardc::tools
