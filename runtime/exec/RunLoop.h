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
#include "runtime/exec/HostTimer.h"
#include "runtime/exec/MemoryWatch.h"

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
  /// Before `step`: what it took the host to queue that step, and to report on those that ended
  /// meanwhile.
  virtual void queued(const HostTime &) {}
  /// Before `step`: seconds that the device took from the end of what it did before to that step's.
  /// Not called where the backend keeps no time.
  virtual void took(double) {}
};

/// Keeps the state of a run while it goes on. A status that is not ok ends the run.
class StateKeeper {
public:
  virtual ~StateKeeper() = default;
  virtual bool isDue(int64_t step) const = 0; ///< after this step; steps count from 1
  /// Keeps the state after a step that is queued and has not ended; `stepEnded` brings its state.
  /// False if the step has to end first: `save` is called then.
  virtual Result<bool> saveAhead(int64_t step) = 0;
  virtual Status stepEnded(const StepState &state) = 0;
  /// Keeps the state after the last step that ended; nothing is queued.
  virtual Status save(const StepState &state) = 0;
  /// Waits for what is under way. Called where the run ends well.
  virtual Status finish() = 0;
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
  /// Set: keeps the state after steps that are due, after the last one, and where the run ends on
  /// request.
  StateKeeper *keeper = nullptr;
  bool check = false; ///< op by op, with a look at every result
  /// Not zero asks for a clean end. Read once a step.
  const std::atomic<int> *stopRequest = nullptr;
  /// Set: steps for which `wantsOps` is true run op by op and tell this observer of each op.
  OpObserver *opObserver = nullptr;
  std::function<bool(int64_t step)> wantsOps; ///< steps count from 1
  /// Set: is given all that ran in some steps in the middle of the run, and how many these were.
  std::function<Status(std::vector<trace::Span> spans, int steps)> trace;
};

struct RunResult {
  bool isStopped = false;             ///< ended before the last step, as requested
  StepState state{};                  ///< after the last step
  std::optional<MemoryChange> memory; ///< left open where no step has ended
};

/// Runs the whole program. Numeric, naming step, rank, op and recipe line, where a loss or norm is
/// not finite: all state is then as it was when that step began.
Result<RunResult> runProgram(Executable &executable, BatchSource &source, RunObserver &observer,
                             const RunOptions &options);

} // namespace shardc::exec
