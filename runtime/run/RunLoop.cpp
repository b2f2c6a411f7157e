// The loop over steps. It queues a step while the previous one is still executed, so that the
// device need not wait for the host. The first step and compared steps are exceptions.
#include "runtime/run/RunLoop.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/run/NonFinite.h"
#include "runtime/run/SegmentRunner.h"
#include "runtime/run/StepReadback.h"

namespace shardc::run {
namespace {

/// The flag of a plan with which its ranks agree on the step after which they end.
class StopFlag {
public:
  /// Finds the flag and clears it on all ranks of this process. Does nothing if the plan has no
  /// flag.
  Status prepare(exec::Executable &executable) {
    uint32_t stop = plan::findCell(executable.role(), plan::CellKind::Stop);
    if (stop == plan::kNone)
      return Status::ok();
    const plan::Cell &cell = executable.role().cells[stop];
    ASSIGN_OR_RETURN(source_, executable.device(0).allocate(hal::MemoryKind::Host,
                                                            cell.type.bytes(), "stop request"));
    std::memset(source_->data(), 1, static_cast<size_t>(cell.type.bytes()));
    for (size_t r = 0; r < executable.rankCount(); ++r) {
      const plan::Role &role = executable.roleOf(r);
      uint32_t index = plan::findCell(role, plan::CellKind::Stop);
      if (index == plan::kNone || role.cells[index].type != cell.type)
        return makeStatus(report::PlanCannotRun,
                          "role '{}' has no stop flag like that of role '{}'", role.name,
                          executable.role().name);
      ASSIGN_OR_RETURN(uint8_t * address, executable.arenas(r).resolve(role.cells[index].place,
                                                                       cell.type.bytes(), "@stop"));
      addresses_.push_back(address);
      RETURN_IF_ERROR(
          executable.computeStream(r).fill(address, 0, cell.type.bytes(), "clear @stop"));
    }
    return Status::ok();
  }
  bool isThere() const { return !addresses_.empty(); }

  /// Enqueues a write that sets the flag on the compute stream of each rank of this process.
  Status set(exec::Executable &executable) {
    for (size_t r = 0; r < addresses_.size(); ++r)
      RETURN_IF_ERROR(executable.computeStream(r).copy(addresses_[r], source_->data(),
                                                       source_->bytes(), "set @stop"));
    return Status::ok();
  }

private:
  std::unique_ptr<hal::Buffer> source_; ///< contains a one
  std::vector<uint8_t *> addresses_;    ///< by rank of this process
};

/// Ends a run op by op after the first op that changed a guard zone. The error has the backend's
/// status, the op and its recipe line. Has no effect if the backend has no guard zones.
class GuardCheck final : public exec::OpObserver {
public:
  explicit GuardCheck(exec::Executable &executable) : executable_(executable) {}
  void setStep(int64_t step) { step_ = step; } ///< for messages

  Status afterOp(const Position &position) override {
    const exec::BoundSegment *bound = executable_.bound(position.segment, position.instance);
    const exec::BoundOp &op = bound->ops[position.op];
    if (op.kind == exec::BoundOp::Nothing)
      return Status::ok();
    bool isBody = executable_.segment(position.segment).body;
    std::string microbatch =
        isBody ? fmt::format(", microbatch {}", position.params.microbatch) : std::string();
    return executable_.backend().checkGuards().withContext(
        fmt::format("step {}{}, after '{}'", step_, microbatch, op.label));
  }

private:
  exec::Executable &executable_;
  int64_t step_ = 0;
};

using plan::ProgramNode;

/// Passes each op to several observers.
class OpObservers final : public exec::OpObserver {
public:
  std::array<exec::OpObserver *, 2> observers{};
  Status beforeSegment(const Position &position) override {
    for (exec::OpObserver *observer : observers)
      if (observer)
        RETURN_IF_ERROR(observer->beforeSegment(position));
    return Status::ok();
  }
  Status afterOp(const Position &position) override {
    for (exec::OpObserver *observer : observers)
      if (observer)
        RETURN_IF_ERROR(observer->afterOp(position));
    return Status::ok();
  }
};

class RunLoop {
public:
  RunLoop(exec::Executable &executable, BatchSource &source, RunObserver &observer,
          const RunOptions &options)
      : executable_(executable), observer_(observer), options_(options),
        segments_(executable, source, timer_), readback_(executable), values_(executable.plan()),
        tracer_(executable, options.trace), finder_(makeNonFiniteFinder(executable, checkedStep_)),
        guards_(executable), memory_(executable) {
    checks_.observers[0] = &guards_; // first, since a write outside of a buffer may cause a NaN
    if (plan::scalingOf(executable.plan().job) !=
        plan::Scaling::Dynamic) // with dynamic loss scaling, overflows are expected
      checks_.observers[1] = finder_.get();
  }

  Result<RunResult> run() {
    RETURN_IF_ERROR(prepare());
    RETURN_IF_ERROR(runTop());
    RETURN_IF_ERROR(executable_.backend().synchronize());
    result_.memory = memory_.change();
    RETURN_IF_ERROR(executable_.backend().checkGuards());
    return result_;
  }

private:
  Status prepare() {
    RETURN_IF_ERROR(segments_.createFeeds());
    setBatchesBefore(options_.firstStep);
    RETURN_IF_ERROR(readback_.prepare());
    return readback_.hasState() ? stop_.prepare(executable_) : Status::ok();
  }

  /// Sets the number of batches that the job consumed before this process began, plus the steps up
  /// to `step` that this process skips. All other steps consume one batch.
  void setBatchesBefore(int64_t step) {
    segments_.setVisitsBefore(
        FeedKind::Train, options_.batchesConsumed.value_or(options_.firstStep) + skippedUpTo(step));
  }

  /// The number of steps up to `step` that this process skips.
  int64_t skippedUpTo(int64_t step) const {
    return plan::countSkipped(options_.skippedSteps, options_.firstStep, step);
  }

  bool isSkipped(int64_t step) const {
    return std::ranges::binary_search(options_.skippedSteps, step);
  }

  using Part = SegmentRunner::Part;

  /// A part of a step: `runs`, and the runs `after` that follow every `every` steps (0: none
  /// follow).
  struct StepPart {
    SegmentRunner::Series runs;
    SegmentRunner::Series toUpdate, update; ///< halves of `runs`, to compare weights
    int64_t every;
    SegmentRunner::Series after;
  };

  /// The programs of the roles in this process.
  std::vector<Part> programs() const {
    std::vector<Part> parts;
    for (uint32_t role : executable_.rolesHere())
      parts.push_back({role, executable_.plan().roles[role].program});
    return parts;
  }

  /// Cuts each part before its next node of this kind and returns the first pieces. Either all
  /// parts have such a node or none has. `parts` keeps the rest, which begins with that node or is
  /// empty.
  static std::vector<Part> takeUpTo(std::vector<Part> &parts, ProgramNode::Kind kind) {
    std::vector<Part> before = parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      std::span<const ProgramNode> nodes = parts[i].nodes;
      auto at = std::ranges::find(nodes, kind, &ProgramNode::kind);
      auto count = static_cast<size_t>(at - nodes.begin());
      before[i].nodes = nodes.first(count);
      parts[i].nodes = nodes.subspan(count);
    }
    return before;
  }

  /// Removes and returns the first node of each part.
  static std::vector<const ProgramNode *> takeFirst(std::vector<Part> &parts) {
    std::vector<const ProgramNode *> first;
    for (Part &part : parts) {
      first.push_back(part.nodes.empty() ? nullptr : &part.nodes.front());
      if (first.back() != nullptr)
        part.nodes = part.nodes.subspan(1);
    }
    return first;
  }

  static std::vector<Part> childrenOf(const std::vector<Part> &parts,
                                      const std::vector<const ProgramNode *> &nodes) {
    std::vector<Part> children;
    for (size_t i = 0; i < parts.size(); ++i)
      if (nodes[i] != nullptr)
        children.push_back({parts[i].role, nodes[i]->children});
    return children;
  }

  /// Executes the program's top level: 'start' for a run that does not continue, then the state of
  /// a checkpoint, then the nodes before the steps, the steps, and the nodes after them.
  Status runTop() {
    exec::OpObserver *observer = options_.check ? &checks_ : nullptr;
    std::vector<Part> left = programs();
    std::vector<Part> begin = takeUpTo(left, ProgramNode::Steps);
    std::vector<Part> starts = begin;
    for (Part &part : begin) { // 'start' is the first node, if there is one
      Part &start = starts[static_cast<size_t>(&part - begin.data())];
      bool hasStart = !part.nodes.empty() && part.nodes.front().kind == ProgramNode::Start;
      start.nodes = part.nodes.first(hasStart ? 1 : 0);
      part.nodes = part.nodes.subspan(start.nodes.size());
    }
    if (options_.isFreshStart)
      RETURN_IF_ERROR(segments_.run(segments_.seriesOf(starts), observer));
    RETURN_IF_ERROR(restore());
    RETURN_IF_ERROR(segments_.run(segments_.seriesOf(begin), observer));
    while (!left.empty() && !left.front().nodes.empty()) {
      std::vector<const ProgramNode *> steps = takeFirst(left);
      RETURN_IF_ERROR(runSteps(*steps.front(), childrenOf(left, steps)));
      std::vector<Part> after = takeUpTo(left, ProgramNode::Steps);
      RETURN_IF_ERROR(segments_.run(segments_.seriesOf(after), observer));
    }
    return Status::ok();
  }

  Status restore() {
    if (!options_.restore || isRestored_)
      return Status::ok();
    isRestored_ = true;
    return options_.restore();
  }

  /// Saves the state. Nothing may be queued, and all earlier steps must have been reported.
  Status save() {
    if (!options_.keeper || result_.state.step <= lastSaved_)
      return Status::ok();
    lastSaved_ = result_.state.step;
    Status status = options_.keeper->save(result_.state);
    observer_.saved();
    return status;
  }

  /// Saves the state after a queued step. A save ahead of the step's end waits for the step's
  /// report, so it must not begin after that report has come. It has come if a trace, an evaluation
  /// or a comparison has waited for the step.
  Status saveAfter(int64_t step) {
    if (result_.state.step < step) {
      ASSIGN_OR_RETURN(bool isTaken, options_.keeper->saveAhead(step));
      if (isTaken) {
        lastSaved_ = step;
        return Status::ok();
      }
    }
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(save());
    return readback_.startClock();
  }

  Status copyAfter(int64_t step) {
    if (result_.state.step == step) // a save has waited for this step
      return options_.keeper->copy(result_.state);
    ASSIGN_OR_RETURN(bool isTaken, options_.keeper->copyAhead(step));
    if (isTaken)
      return Status::ok();
    RETURN_IF_ERROR(settle(0));
    if (result_.state.step == step)
      RETURN_IF_ERROR(options_.keeper->copy(result_.state));
    return readback_.startClock();
  }

  /// Divides a step's runs at each `every` node.
  void prepareSteps(const std::vector<Part> &nodes) {
    step_.clear();
    inStep_ = segments_.seriesOf(nodes);
    std::vector<Part> left = nodes;
    while (true) {
      std::vector<Part> runs = takeUpTo(left, ProgramNode::Every);
      SegmentRunner::Series series = segments_.seriesOf(runs);
      step_.push_back({std::move(series), {}, {}, 0, {}});
      if (comparesBefore_)
        std::tie(step_.back().toUpdate, step_.back().update) = atUpdate(step_.back().runs);
      std::vector<const ProgramNode *> every = takeFirst(left);
      if (every.empty() || every.front() == nullptr)
        return;
      step_.back().every = every.front()->count;
      step_.back().after = segments_.seriesOf(childrenOf(nodes, every));
    }
  }

  /// Splits a series of launches: what each role runs before its update, and the update with
  /// everything after it. No role's microbatches wait for another role's update.
  std::pair<SegmentRunner::Series, SegmentRunner::Series>
  atUpdate(const SegmentRunner::Series &series) const {
    SegmentRunner::Series before, behind;
    std::vector<const plan::Role *> updating;
    std::vector<bool> isBehind(executable_.segmentCount());
    for (const SegmentRunner::Run &run : series.runs) {
      const plan::Role *role = &executable_.roleOfSegment(run.segment);
      bool isUpdating = std::ranges::find(updating, role) != updating.end();
      if (!isUpdating && executable_.segment(run.segment).kind == plan::SegmentKind::Update) {
        updating.push_back(role);
        isUpdating = true;
      }
      isBehind[run.segment] = isUpdating;
      (isUpdating ? behind : before).runs.push_back(run);
    }
    for (const auto &visits : series.visits) // visits are counted after a segment's last run
      (isBehind[visits.first] ? behind : before).visits.push_back(visits);
    return {std::move(before), std::move(behind)};
  }

  /// Whether updates change only shards of weights that ranks also hold whole. The next step
  /// gathers the whole weights, so ranks have equal ones from the gather to the update of that
  /// step, but not after it.
  bool gathersWhole() const {
    return std::ranges::any_of(executable_.plan().roles, [](const plan::Role &role) {
      return std::ranges::any_of(role.cells, [&](const plan::Cell &cell) {
        return cell.kind == plan::CellKind::WeightShard &&
               plan::findCell(role, plan::CellKind::Weight, cell.of) != plan::kNone;
      });
    });
  }

  bool isCompared(int64_t step) const {
    return options_.compareInterval > 0 && step % options_.compareInterval == 0 && !isSkipped(step);
  }

  /// One iteration per step: requests to stop, results of earlier steps, the step, then traces,
  /// comparisons and saves that are due.
  Status runSteps(const ProgramNode &steps, const std::vector<Part> &nodes) {
    comparesBefore_ = options_.compareInterval > 0 && gathersWhole();
    prepareSteps(nodes);
    for (const ProgramNode &node : steps.children)
      if (node.kind == ProgramNode::Every) { // evaluations run every `count` steps
        segments_.setVisitsBefore(
            FeedKind::Eval, options_.evaluationSets *
                                evaluationsUpTo(options_.firstStep, node.count,
                                                options_.firstEvaluation, options_.skippedSteps));
        break;
      }
    result_.state.step = lastSaved_ = options_.firstStep;
    int64_t last = steps.count + options_.stepsAhead; // stepsEnd may be earlier
    int64_t end = options_.evaluatesOnly ? options_.firstStep : std::min(last, options_.stepsEnd);
    observer_.begin(options_.firstStep, options_.stepsTotal.value_or(end));
    RETURN_IF_ERROR(readback_.startClock());
    for (int64_t i = options_.firstStep; i < end && !isEnding_; ++i) {
      timer_.beginStep();
      RETURN_IF_ERROR(requestStop());
      RETURN_IF_ERROR(requestEndAtSave(i, end));
      // The first step must end before the next is queued, so that all its allocations are counted.
      bool comparesWithin = comparesBefore_ && isCompared(i + 1);
      RETURN_IF_ERROR(settle(i == options_.firstStep + 1 || comparesWithin ? 0 : kStepsAhead - 1));
      if (isEnding_)
        break;
      RETURN_IF_ERROR(traceBefore(i, end));
      bool isStepSkipped = isSkipped(i + 1);
      if (Status status = isStepSkipped ? skipStep(i) : runIteration(i, comparesWithin);
          !status.isOk()) {
        // Reports steps that have ended before. A failure to get their results adds nothing to the
        // error.
        static_cast<void>(settle(0));
        return status;
      }
      RETURN_IF_ERROR(traceAfter(i));
      if (!comparesBefore_ && isCompared(i + 1))
        RETURN_IF_ERROR(compareAfter(i + 1));
      if (isSaveDue(i))
        RETURN_IF_ERROR(saveAfter(i + 1));
      if (options_.keeper && options_.keeper->isCopyDue(i + 1) && !isStepSkipped)
        RETURN_IF_ERROR(copyAfter(i + 1));
      if (options_.endsAtSave && isSaveDue(i)) { // whether all ranks end here is known now
        RETURN_IF_ERROR(settle(0));
        RETURN_IF_ERROR(readback_.startClock());
        isEnding_ = isEnding_ || (result_.hasEndedAtSave && !stop_.isThere());
      }
    }
    if (options_.evaluatesOnly)
      RETURN_IF_ERROR(evaluate());
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(evaluateTest(last));
    result_.isStopped = isEnding_;
    RETURN_IF_ERROR(save());
    return options_.keeper ? options_.keeper->finish() : Status::ok();
  }

  /// Executes the evaluations of a step only. The state stays that of the previous step.
  Status evaluate() {
    for (const StepPart &part : step_) {
      if (part.every == 0)
        continue;
      RETURN_IF_ERROR(evaluateSets(part, options_.check ? &checks_ : nullptr,
                                   options_.firstStep - 1, /*isTest=*/false));
      RETURN_IF_ERROR(noteEvaluation(options_.firstStep));
      if (options_.evaluatesTest)
        RETURN_IF_ERROR(evaluateSets(part, options_.check ? &checks_ : nullptr,
                                     options_.firstStep - 1, /*isTest=*/true));
    }
    return Status::ok();
  }

  /// Executes an evaluation: of each validation set, or of the test data.
  Status evaluateSets(const StepPart &part, exec::OpObserver *observer, int64_t iteration,
                      bool isTest) {
    for (int64_t set = 0; set < (isTest ? 1 : options_.evaluationSets); ++set) {
      if (options_.evaluationSets > 1 || options_.evaluatesTest)
        segments_.source().evaluate(set, isTest);
      RETURN_IF_ERROR(segments_.run(part.after, observer));
      RETURN_IF_ERROR(readBack(StepReadback::Kind::Evaluation, iteration));
    }
    return Status::ok();
  }

  Status noteEvaluation(int64_t step) {
    if (!options_.afterEvaluation)
      return Status::ok();
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(executable_.backend().synchronize());
    RETURN_IF_ERROR(options_.afterEvaluation(step));
    return readback_.startClock();
  }

  /// Once all steps are done; `last`: the last one of the job, whether or not this run ends before.
  Status evaluateTest(int64_t last) {
    bool isDone = options_.evaluatesTest && !options_.evaluatesOnly && !isEnding_ &&
                  result_.state.step >= last;
    if (!isDone)
      return Status::ok();
    isTesting_ = true;
    for (const StepPart &part : step_)
      if (part.every > 0)
        RETURN_IF_ERROR(evaluateSets(part, nullptr, last - 1, /*isTest=*/true));
    return settle(0);
  }

  /// Compares replicated weights after a step.
  Status compareAfter(int64_t step) {
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(executable_.backend().synchronize());
    RETURN_IF_ERROR(options_.compare(step));
    return readback_.startClock();
  }

  Status traceBefore(int64_t iteration, int64_t end) {
    if (!tracer_.isDueBefore(iteration, options_.firstStep, end))
      return Status::ok();
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(tracer_.begin(iteration, end));
    return readback_.startClock();
  }

  Status traceAfter(int64_t iteration) {
    if (!tracer_.isDueAfter(iteration))
      return Status::ok();
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(tracer_.end());
    return readback_.startClock();
  }

  /// Skips a step. The next step uses the batch after the skipped one.
  Status skipStep(int64_t iteration) {
    setBatchesBefore(iteration + 1);
    return readBack(StepReadback::Kind::Skipped, iteration);
  }

  /// Compares weights within a step, before its update. No work of earlier steps is queued. The
  /// step's time includes the comparison.
  Status runComparing(const StepPart &part, int64_t step, exec::OpObserver *observer) {
    RETURN_IF_ERROR(segments_.run(part.toUpdate, observer));
    RETURN_IF_ERROR(executable_.backend().synchronize());
    RETURN_IF_ERROR(options_.compare(step));
    return segments_.run(part.update, observer);
  }

  /// Queues one step. Its state is read back after the first part, the training itself; evaluations
  /// follow in further parts.
  Status runIteration(int64_t iteration, bool compares) {
    OpObservers observers;
    bool wantsOps = options_.opObserver && options_.wantsOps && options_.wantsOps(iteration + 1);
    if (wantsOps)
      observers.observers[0] = options_.opObserver;
    if (options_.check)
      observers.observers[1] = &checks_;
    checkedStep_ = iteration + 1;
    guards_.setStep(iteration + 1);
    exec::OpObserver *observer = wantsOps || options_.check ? &observers : nullptr;
    bool isMarked = false;
    for (const StepPart &part : step_) {
      RETURN_IF_ERROR(compares && !isMarked ? runComparing(part, iteration + 1, observer)
                                            : segments_.run(part.runs, observer));
      if (!isMarked)
        RETURN_IF_ERROR(readBack(StepReadback::Kind::Step, iteration));
      isMarked = true;
      if (part.every == 0 || (iteration + 1) % part.every != 0 ||
          iteration + 1 < options_.firstEvaluation)
        continue;
      RETURN_IF_ERROR(evaluateSets(part, observer, iteration, /*isTest=*/false));
      RETURN_IF_ERROR(noteEvaluation(iteration + 1));
    }
    return Status::ok();
  }

  Status readBack(StepReadback::Kind kind, int64_t iteration) {
    if (readback_.isFull()) // several evaluations of one step may fill it
      RETURN_IF_ERROR(settleOldest());
    return readback_.queue(kind, iteration, timer_);
  }

  /// Waits until at most `stepsLeft` steps are running, and reports those that have ended.
  Status settle(int stepsLeft) {
    while (!readback_.isEmpty() && (readback_.stepsQueued() > stepsLeft || stepsLeft == 0))
      RETURN_IF_ERROR(settleOldest());
    return Status::ok();
  }

  /// Takes the oldest result that was queued: of a step, an evaluation, or a skipped step. A loss
  /// of an evaluation that is not a number ends the run if rows may have exceeded the capacity of
  /// experts, since an overflow makes the loss a NaN.
  Status settleOldest() {
    ASSIGN_OR_RETURN(StepReadback::Copy copy, readback_.take(timer_));
    copy.state.step += skippedUpTo(copy.iteration + 1); // the device does not count skipped steps
    if (copy.kind == StepReadback::Kind::Skipped) {
      result_.state = copy.state;
      observer_.skipped(copy.state);
      return Status::ok();
    }
    if (copy.kind == StepReadback::Kind::Evaluation) {
      if (std::isnan(copy.state.evalLoss) && mayExceedCapacity(executable_.plan()))
        return makeStatus(report::RowsOverCapacity,
                          "step {}: the loss of the evaluation is not a number; rows of its tokens "
                          "have found no room at experts, or the weights are wrong",
                          copy.state.step);
      result_.state = copy.state;
      bool isTest =
          isTesting_ || (options_.evaluatesOnly && numEvaluated_ == options_.evaluationSets);
      if (options_.evaluationSets > 1 || options_.evaluatesTest)
        observer_.evaluating({numEvaluated_++ % options_.evaluationSets, isTest});
      observer_.evaluated(copy.state);
      return Status::ok();
    }
    observer_.queued(copy.host);
    if (std::span<const NamedValue> values = values_.of(copy.reported); !values.empty())
      observer_.reported(values);
    if (!std::isnan(copy.took))
      observer_.took(copy.took);
    return endStep(copy.iteration, copy.state);
  }

  Status endStep(int64_t iteration, const StepState &state) {
    bool isOverflow = state.nonfinite && !state.halt; // the loss scale accounts for it
    if (state.nonfinite && !isOverflow)
      return explainNonFinite(iteration, state);
    result_.state = state;
    observer_.step(state);
    memory_.stepEnded();
    overflowsInRow_ = isOverflow ? overflowsInRow_ + 1 : 0;
    if (options_.overflowsMax > 0 && overflowsInRow_ >= options_.overflowsMax)
      return makeStatus(StatusCode::Numeric,
                        "step {}: gradients of the last {} steps were not finite", iteration + 1,
                        overflowsInRow_);
    isEnding_ = isEnding_ || state.stop;
    if (state.halt)
      return makeStatus(StatusCode::Aborted, "step {}: the plan's ops ended the run",
                        iteration + 1);
    return options_.keeper ? options_.keeper->stepEnded(state) : Status::ok();
  }

  /// Finds the cause of a non-finite loss or norm. Neither this update nor later ones changed the
  /// state (a halt persists), so it is still the state at the beginning of the step. The
  /// microbatches of the step are executed again, and every result is checked.
  Status explainNonFinite(int64_t iteration, const StepState &state) {
    RETURN_IF_ERROR(executable_.backend().synchronize());
    checkedStep_ = iteration + 1;
    setBatchesBefore(iteration);
    int64_t visit = iteration - options_.firstStep - skippedUpTo(iteration);
    RETURN_IF_ERROR(segments_.runVisit(inStep_, visit, finder_.get()));
    return makeStatus(StatusCode::Numeric,
                      "step {}: loss {}, gradient norm {}; the same microbatches, run again op by "
                      "op, gave finite "
                      "results only",
                      iteration + 1, state.loss, state.gradNorm);
  }

  Status requestStop() {
    bool isAsked =
        options_.stopRequest && options_.stopRequest->load(std::memory_order_relaxed) != 0;
    bool isLate = options_.deadline && std::chrono::steady_clock::now() >= *options_.deadline;
    if (isStopRequested_ || (!isAsked && !isLate))
      return Status::ok();
    isStopRequested_ = true;
    if (!stop_.isThere()) { // only this process decides
      isEnding_ = true;
      return Status::ok();
    }
    return stop_.set(executable_);
  }

  bool isSaveDue(int64_t iteration) const {
    return options_.keeper && options_.keeper->isDue(iteration + 1) && !isSkipped(iteration + 1);
  }

  Status requestEndAtSave(int64_t iteration, int64_t end) {
    if (!options_.endsAtSave || isStopRequested_ || iteration + 1 >= end || !isSaveDue(iteration) ||
        options_.endsAtSave->load(std::memory_order_relaxed) == 0)
      return Status::ok();
    isStopRequested_ = result_.hasEndedAtSave = true;
    return stop_.isThere() ? stop_.set(executable_) : Status::ok();
  }

  exec::Executable &executable_;
  RunObserver &observer_;
  const RunOptions &options_;
  HostTimer timer_;
  SegmentRunner segments_;
  StepReadback readback_;
  StepValues values_;
  StopFlag stop_;
  StepTracer tracer_;
  int64_t checkedStep_ = 0; ///< for messages
  std::unique_ptr<exec::OpObserver> finder_;
  GuardCheck guards_;
  OpObservers checks_; ///< both of the above
  MemoryWatch memory_;
  RunResult result_;

  // State of the current loop:
  std::vector<StepPart> step_;
  bool comparesBefore_ = false;  ///< compares replicas before the update
  SegmentRunner::Series inStep_; ///< runs of a step, without those of `every` nodes
  int64_t lastSaved_ = 0;        ///< step of the last save
  int64_t overflowsInRow_ = 0;   ///< consecutive steps
  int64_t numEvaluated_ = 0;     ///< reported evaluations of one set
  bool isTesting_ = false;       ///< test data are evaluated next
  bool isStopRequested_ = false, isEnding_ = false, isRestored_ = false;
};

} // namespace

int64_t evaluationsUpTo(int64_t step, int64_t interval, int64_t start,
                        const std::vector<int64_t> &skipped) {
  int64_t left = std::ranges::count_if(skipped, [&](int64_t each) {
    return each % interval == 0 && each >= std::max<int64_t>(start, 1) && each <= step;
  });
  return std::max<int64_t>(step / interval - std::max<int64_t>(start - 1, 0) / interval - left, 0);
}

Result<RunResult> runProgram(exec::Executable &executable, BatchSource &source,
                             RunObserver &observer, const RunOptions &options) {
  RunLoop loop(executable, source, observer, options);
  Result<RunResult> result = loop.run();
  if (!result.isOk()) // queued work still uses the loop's buffers
    static_cast<void>(executable.backend().synchronize());
  return result;
}

} // namespace shardc::run
