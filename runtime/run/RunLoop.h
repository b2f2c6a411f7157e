// Runs a role's program: launches segments at most two steps ahead, feeds microbatches, reads
// the step state back, and ends after the last step, on request, or when a value is not
// finite.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>

#include "runtime/base/StepState.h"
#include "runtime/exec/Executable.h"
#include "runtime/run/BatchSource.h"
#include "runtime/run/HostTimer.h"
#include "runtime/run/MemoryWatch.h"
#include "runtime/run/StepTracer.h"
#include "runtime/run/StepValues.h"

namespace shardc::run {

/// More overflows in a row than it takes from the first loss scale of Megatron, 2^32, to one that
/// fits any model.
inline constexpr int64_t kOverflowsMax = 50;

/// The data set that an evaluation used.
struct Evaluated {
  int64_t set = 0;     ///< of the validation sets, if there are several
  bool isTest = false; ///< the test data, once
};

/// Receives the results of a run. Called on the thread of the loop; must not allocate in steps.
class RunObserver {
public:
  virtual ~RunObserver() = default;
  /// Before the first step; `stepsTotal` is the job's last step.
  virtual void begin(int64_t firstStep, int64_t stepsTotal) = 0;
  /// A step has ended, and its update was applied, or left out if `state.skip`.
  virtual void step(const StepState &state) = 0;
  /// A step was skipped, as the recipe asks; the state is that of its number.
  virtual void skipped(const StepState &) {}
  /// An evaluation after this step has ended.
  virtual void evaluated(const StepState &state) = 0;
  /// Before `evaluated`, where an evaluation may take other data than one validation set.
  virtual void evaluating(const Evaluated &) {}
  /// A save has ended, successfully or not.
  virtual void saved() {}
  /// Before `step`: the host time to enqueue that step and to report on steps that ended
  /// meanwhile.
  virtual void queued(const HostTime &) {}
  /// Called before `step`: the values that the plan reports for that step in addition to its state,
  /// if any.
  virtual void reported(std::span<const NamedValue>) {}
  /// Before `step`: seconds of the device from the end of the previous work to the end of that
  /// step. Not called if the backend records no time.
  virtual void took(double) {}
};

/// Saves the state of a run while it continues. A status that is not ok ends the run.
class StateKeeper {
public:
  virtual ~StateKeeper() = default;
  virtual bool isDue(int64_t step) const = 0; ///< after this step; steps count from 1
  /// Saves the state after a step that is queued and has not ended; `stepEnded` delivers its step
  /// state. False if the step must end first: `save` is then called.
  virtual Result<bool> saveAhead(int64_t step) = 0;
  virtual Status stepEnded(const StepState &state) = 0;
  /// Saves the state after the last step that ended; nothing is queued.
  virtual Status save(const StepState &state) = 0;
  /// Whether the state after this step is copied into memory too, from which a restart may go on.
  virtual bool isCopyDue(int64_t) const { return false; }
  /// The counterparts of saveAhead and save for copies in memory.
  virtual Result<bool> copyAhead(int64_t) { return true; }
  virtual Status copy(const StepState &) { return Status::ok(); }
  /// Waits for running saves. Called when the run ends normally.
  virtual Status finish() = 0;
};

/// Evaluations that are due every so many steps up to a step, from the step `start` on. None is
/// behind a skipped step.
int64_t evaluationsUpTo(int64_t step, int64_t interval, int64_t start,
                        const std::vector<int64_t> &skipped = {});

struct RunOptions {
  int64_t firstStep = 0; ///< number of steps of the job that are already done
  int64_t stepsEnd =
      std::numeric_limits<int64_t>::max(); ///< ends after this step of the job at the latest
  /// Steps that the job is ahead of its plan, whose numbers of steps are those of a run from its
  /// beginning.
  int64_t stepsAhead = 0;
  /// The job's last step where another plan goes on with the job; if unset, this plan's.
  std::optional<int64_t> stepsTotal;
  bool isFreshStart = true; ///< runs the part of the program for runs without a checkpoint
  /// If set: loads state from a checkpoint. Called once, after the segments of a fresh start and
  /// before those of a resumed run.
  std::function<Status()> restore;
  /// Global batches of the job that were consumed, since the plan's first one; if unset, one for
  /// each step done.
  std::optional<int64_t> batchesConsumed;
  /// If set: saves the state after steps that are due, after the last one, and when the run ends on
  /// request.
  StateKeeper *keeper = nullptr;
  bool evaluatesOnly = false;  ///< evaluates once, without any step
  int64_t firstEvaluation = 0; ///< no evaluation before this step has ended
  int64_t evaluationSets = 1;  ///< validation sets, each of which an evaluation takes in turn
  bool evaluatesTest = false;  ///< once all steps are done, the test data too
  /// If above 0: `compare` is called after every so many steps, with nothing queued. If ranks have
  /// whole weights only inside a step, which gathers them, it is called before the update.
  int64_t compareInterval = 0;
  std::function<Status(int64_t step)> compare;
  /// If set: called after each evaluation of validation data, with nothing queued.
  std::function<Status(int64_t step)> afterEvaluation;
  /// Steps of the job, ascending from 1, that are skipped: they only take their batch.
  std::vector<int64_t> skippedSteps;
  /// If set: the run ends after the step in which this time comes, as on request.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  /// If above 0: the run ends after so many consecutive steps with non-finite gradients, although
  /// the loss scale accounts for them.
  int64_t overflowsMax = 0;
  bool check = false; ///< op by op, with a check of every result
  /// Non-zero requests a clean end. Read once per step.
  const std::atomic<int> *stopRequest = nullptr;
  /// If set: when it is not 0 on any rank, the run ends after the next due save, as on request. Set
  /// on all ranks or on none.
  const std::atomic<int64_t> *endsAtSave = nullptr;
  /// If set: steps for which `wantsOps` is true run op by op and pass each op to this observer.
  exec::OpObserver *opObserver = nullptr;
  std::function<bool(int64_t step)> wantsOps; ///< steps count from 1
  StepTracer::Take trace;                     ///< if set, some steps are traced
};

struct RunResult {
  bool isStopped = false;             ///< ended before the last step, as requested
  bool hasEndedAtSave = false;        ///< by RunOptions::endsAtSave of this process
  StepState state{};                  ///< after the last step
  std::optional<MemoryChange> memory; ///< empty if no step has ended
};

/// Runs the whole program. If a loss or norm is not finite: Numeric, with step, rank, op and recipe
/// line; all state is then that of the beginning of the step.
Result<RunResult> runProgram(exec::Executable &executable, BatchSource &source,
                             RunObserver &observer, const RunOptions &options);

} // namespace shardc::run
