// What shardc-run does with its options: train, rehearse, measure, or continue a text. Each
// function returns the exit status.
#pragma once

#include <span>

#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/Environment.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Trains on this process's ranks, starting from the environment's checkpoint, if any: with one
/// plan after another if the batch grows.
int train(std::span<const plan::Plan> plans, const RunToolOptions &options, ProcessContext &process,
          Environment &environment);

/// A run without arithmetic, on this process's ranks: everything is bound, captured and launched on
/// a backend that computes nothing. This finds plans that cannot be bound, and sequences of calls
/// that break the interface. Neither reads data or a checkpoint nor writes one.
int rehearse(std::span<const plan::Plan> plans, const RunToolOptions &options,
             const BackendEntry &entry, BackendSession &session, ProcessContext &process);

/// `--measure` and `--doctor`, which run instead of a plan. Ranks are started, connected and
/// watched like those of a run. kInputStatus if --doctor has findings.
int measureMachine(RunToolOptions options);

/// `--continue`, for `shardc generate`: continues the text of the options' settings and prints it
/// token by token. The plan file has the forward body of one row, and that of the prompt's rows if
/// the prompt has several tokens.
int continueText(const RunToolOptions &options);

} // namespace shardc::tools
