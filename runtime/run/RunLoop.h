// Executes the program of a run: launches segments at most two steps ahead, writes microbatches,
// and reads the step state back. It ends after the last step, on request, or if a value is not
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

/// Limit on consecutive overflows. It takes fewer to get from Megatron's initial loss scale, 2^32,
/// to one that fits any model.
inline constexpr int64_t kOverflowsMax = 50;

/// The data that an evaluation uses.
struct Evaluated {
  int64_t set = 0;     ///< number of the validation set, if there are several
  bool isTest = false; ///< whether it uses the test data
};

/// Receives the results of a run. Called on the thread of the loop. Must not allocate in steps.
class RunObserver {
public:
  virtual ~RunObserver() = default;
  /// Called before the first step; `stepsTotal` is the number of the job's last step.
  virtual void begin(int64_t firstStep, int64_t stepsTotal) = 0;
  /// Called when a step has ended. Its update was applied, or skipped if `state.skip`.
  virtual void step(const StepState &state) = 0;
  /// Called when a step was skipped as the recipe requests, with the state that has its number.
  virtual void skipped(const StepState &) {}
  /// Called when an evaluation after the step in `state` has ended.
  virtual void evaluated(const StepState &state) = 0;
  /// Called before `evaluated` if an evaluation may use other data than a single validation set.
  virtual void evaluating(const Evaluated &) {}
  /// Called when a save has ended, successfully or not.
  virtual void saved() {}
  /// Called before `step`: the host time to enqueue that step and to report steps that ended
  /// meanwhile.
  virtual void queued(const HostTime &) {}
  /// Called before `step`: the values that the plan reports for that step in addition to its state,
  /// if it has any.
  virtual void reported(std::span<const NamedValue>) {}
  /// Called before `step`: device seconds from the end of earlier work to the end of that step. Not
  /// called if the backend records no time.
  virtual void took(double) {}
};

/// Saves the state of a run while it continues. An error status ends the run.
class StateKeeper {
public:
  virtual ~StateKeeper() = default;
  virtual bool isDue(int64_t step) const = 0; ///< after this step, counted from 1
  /// Saves the state after a step that is queued but has not ended. `stepEnded` later provides its
  /// step state. False if the step must end first; then `save` is called.
  virtual Result<bool> saveAhead(int64_t step) = 0;
  virtual Status stepEnded(const StepState &state) = 0;
  /// Saves the state after the last step that ended. Nothing is queued.
  virtual Status save(const StepState &state) = 0;
  /// Whether the state after this step is also copied to memory, from which a restart may continue.
  virtual bool isCopyDue(int64_t) const { return false; }
  /// Like saveAhead and save, for copies in memory.
  virtual Result<bool> copyAhead(int64_t) { return true; }
  virtual Status copy(const StepState &) { return Status::ok(); }
  /// Waits for running saves. Called when the run ends normally.
  virtual Status finish() = 0;
};

/// Number of evaluations up to a step, with one every `interval` steps from step `start` on.
/// Skipped steps have no evaluation.
int64_t evaluationsUpTo(int64_t step, int64_t interval, int64_t start,
                        const std::vector<int64_t> &skipped = {});

struct RunOptions {
  int64_t firstStep = 0; ///< number of steps that the job has already done
  int64_t stepsEnd =
      std::numeric_limits<int64_t>::max(); ///< ends after this step of the job at the latest
  /// Difference between the job's step numbers and those of its plan, which counts from the start
  /// of a run.
  int64_t stepsAhead = 0;
  /// The job's last step if another plan continues the job; not set: this plan's last step.
  std::optional<int64_t> stepsTotal;
  bool isFreshStart = true; ///< runs the program's part for runs without a checkpoint
  /// If set, loads state from a checkpoint. Called once, after the segments of a fresh start and
  /// before those of a resumed run.
  std::function<Status()> restore;
  /// Global batches of the job that were consumed since the plan's first one; not set: one per step
  /// done.
  std::optional<int64_t> batchesConsumed;
  /// If set, saves the state after steps that are due, after the last step, and when the run ends
  /// on request.
  StateKeeper *keeper = nullptr;
  bool evaluatesOnly = false;  ///< evaluates once, and executes no step
  int64_t firstEvaluation = 0; ///< number of the first step that may be followed by an evaluation
  int64_t evaluationSets = 1;  ///< validation sets; each evaluation uses the next one
  bool evaluatesTest = false;  ///< evaluates the test data after all steps
  /// If above 0, `compare` is called after every `compareInterval` steps, with nothing queued. If
  /// ranks have whole weights only within a step, which gathers them, it is called before the
  /// update.
  int64_t compareInterval = 0;
  std::function<Status(int64_t step)> compare;
  /// If set: called after each evaluation of validation data, with nothing queued.
  std::function<Status(int64_t step)> afterEvaluation;
  /// Steps of the job, ascending from 1, that are skipped: they only take their batch.
  std::vector<int64_t> skippedSteps;
  /// If set, the run ends after the step during which this time passes, as on request.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  /// If above 0, the run ends after this many consecutive steps with non-finite gradients, even if
  /// the loss scale accounts for them.
  int64_t overflowsMax = 0;
  bool check = false; ///< runs op by op, and checks every result
  /// A value other than 0 requests a clean end. It is read once per step.
  const std::atomic<int> *stopRequest = nullptr;
  /// If set, the run ends after the next due save, as on request, once the value is not 0 on any
  /// rank. Set on all ranks or on none.
  const std::atomic<int64_t> *endsAtSave = nullptr;
  /// If set, steps for which `wantsOps` is true run op by op, and each op is passed to this
  /// observer.
  exec::OpObserver *opObserver = nullptr;
  std::function<bool(int64_t step)> wantsOps; ///< steps count from 1
  StepTracer::Take trace;                     ///< if set, some steps are traced
};

struct RunResult {
  bool isStopped = false;             ///< ended before the last step, on request
  bool hasEndedAtSave = false;        ///< ended by RunOptions::endsAtSave of this process
  StepState state{};                  ///< after the last step
  std::optional<MemoryChange> memory; ///< empty if no step has ended
};

/// Runs the whole program. Numeric, with step, rank, op and recipe line, if a loss or norm is not
/// finite; all state is then that of the start of the step.
Result<RunResult> runProgram(exec::Executable &executable, BatchSource &source,
                             RunObserver &observer, const RunOptions &options);

} // namespace shardc::run
