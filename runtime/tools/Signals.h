// SIGINT, SIGTERM, SIGHUP and train.exit_signal request a clean end; a second one but SIGHUP ends
// the process at once. Before a run holds them there is nothing to finish, and the first ends the
// process.
#pragma once

#include <atomic>

#include "runtime/plan/Job.h"

namespace shardc::tools {

/// Installs the handlers, and unblocks signals, so that earlier ones are delivered. Call it first.
void watchSignals();

/// Makes a first request only count, so that the run ends after a step. With `isQuiet` a parent
/// prints what becomes of a request. Writing to a closed pipe becomes an error of that call instead
/// of a signal.
void holdSignals(bool isQuiet);

/// Takes a signal that the job names beside the others. Call it before processes are started.
void watchSignal(plan::Job::ExitSignal signal);

/// A first request, if there was none, without a word.
void requestEnd();

/// Says how many requests there were.
const std::atomic<int> &stopRequests();

} // namespace shardc::tools
