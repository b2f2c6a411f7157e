// Runs a role's program: launches segments at most two steps ahead, feeds microbatches, reads the
// step state back, and ends on time: after the last step, on request, or where a value is not
// finite.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <optional>

#include "runtime/base/StepState.h"
#include "runtime/exec/BatchSource.h"
#include "runtime/exec/Executable.h"

namespace shardc::exec {

/// Told what the run comes to. Called on the thread that runs the loop; allocates nothing in steps.
class RunObserver {
public:
  virtual ~RunObserver() = default;
  /// Before the first step; `stepsTotal` is the job's last step.
  virtual void begin(int64_t firstStep, int64_t stepsTotal) = 0;
  /// A step has ended, and its update was applied.
  virtual void step(const StepState &state) = 0;
  /// An evaluation after this step has ended.
  virtual void evaluated(const StepState &state) = 0;
  /// A save has ended, well or not.
  virtual void saved() {}
};

struct RunOptions {
  int64_t firstStep = 0; ///< steps of the job that are behind us
  int64_t stepsEnd =
      std::numeric_limits<int64_t>::max(); ///< ends after this step of the job, if it has more
  bool isFreshStart = true; ///< runs what a program does where no checkpoint is loaded
  /// Set: puts state in place that a checkpoint holds. Called once, before anything that a resumed
  /// run runs, after what a fresh start runs.
  std::function<Status()> restore;
  /// Global batches of the job that were consumed; left open, one for each step behind us.
  std::optional<int64_t> batchesConsumed;
  /// Set: keeps the state. Called after steps for which `isSaveDue` is true, after the last one,
  /// and where the run ends on request; nothing is queued then.
  std::function<void(const StepState &)> save;
  std::function<bool(int64_t step)> isSaveDue; ///< steps count from 1
  bool check = false;       ///< op by op, with a look at every result
  /// Not zero asks for a clean end. Read once a step.
  const std::atomic<int> *stopRequest = nullptr;
  /// Set: steps for which `wantsOps` is true run op by op and tell this observer of each op.
  OpObserver *opObserver = nullptr;
  std::function<bool(int64_t step)> wantsOps; ///< steps count from 1
};

struct RunResult {
  bool isStopped = false; ///< ended before the last step, as requested
  StepState state{};      ///< after the last step
};

/// Runs the whole program. Numeric, naming step, rank, op and recipe line, where a loss or norm is
/// not finite: all state is then as it was when that step began.
Result<RunResult> runProgram(Executable &executable, BatchSource &source, RunObserver &observer,
                             const RunOptions &options);

} // namespace shardc::exec
