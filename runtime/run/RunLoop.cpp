#include "runtime/run/RunLoop.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "runtime/base/Reports.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/run/FeedRing.h"
#include "runtime/run/GuardCheck.h"
#include "runtime/run/NonFinite.h"

namespace shardc::run {
namespace {

using plan::ProgramNode;

/// Steps that may be queued before the first of them has ended.
constexpr int kStepsAhead = 2;

/// Steps that a trace skips at the start, and steps that it records.
constexpr int64_t kStepsBeforeTrace = 6;
constexpr int64_t kStepsTraced = 3;

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
      : executable_(executable), role_(executable.role()), source_(source), observer_(observer),
        options_(options), finder_(executable), guards_(executable), memory_(executable),
        visits_(role_.segments.size()), feedOf_(role_.segments.size()) {
    checks_.observers = {&guards_, &finder_}; // a write outside a buffer may be the cause of a NaN
  }

  Result<RunResult> run() {
    RETURN_IF_ERROR(prepare());
    for (const ProgramNode &node : role_.program) {
      if (node.kind != ProgramNode::Start)
        RETURN_IF_ERROR(restore());
      RETURN_IF_ERROR(runTop(node));
    }
    RETURN_IF_ERROR(executable_.backend().synchronize());
    result_.memory = memory_.change();
    RETURN_IF_ERROR(executable_.backend().checkGuards());
    return result_;
  }

private:
  /// A copy of the step state on its way to the host.
  struct Mark {
    enum Kind : uint8_t { Step, Evaluation } kind = Step;
    int64_t iteration = 0;
    HostTime host; ///< to queue the step and this
    std::unique_ptr<hal::Event> event;
  };
  static constexpr size_t kMarks = 2 * (kStepsAhead + 1);

  Status prepare() {
    RETURN_IF_ERROR(createFeeds());
    uint32_t step = plan::findCell(role_, plan::CellKind::Step);
    if (step == plan::kNone)
      return Status::ok();
    const plan::Cell &cell = role_.cells[step];
    if (cell.type.bytes() != static_cast<int64_t>(sizeof(StepState)))
      return makeStatus(report::PlanCannotRun,
                        fmt::format("@step has {} bytes, a step state has {}", cell.type.bytes(),
                                    sizeof(StepState)));
    ASSIGN_OR_RETURN(stepAddress_,
                     executable_.arenas(0).resolve(cell.place, cell.type.bytes(), "@step"));
    hal::Device &device = executable_.device(0);
    ASSIGN_OR_RETURN(readback_, device.allocate(hal::MemoryKind::Host, kMarks * sizeof(StepState),
                                                "step readback"));
    for (Mark &mark : marks_) {
      ASSIGN_OR_RETURN(mark.event, device.createTimedEvent());
    }
    ASSIGN_OR_RETURN(clockStart_, device.createTimedEvent());
    return prepareStop();
  }

  /// The flag that ops read is set in stream order, from a host buffer that holds a one.
  Status prepareStop() {
    uint32_t stop = plan::findCell(role_, plan::CellKind::Stop);
    if (stop == plan::kNone)
      return Status::ok();
    const plan::Cell &cell = role_.cells[stop];
    ASSIGN_OR_RETURN(stopSource_, executable_.device(0).allocate(
                                      hal::MemoryKind::Host, cell.type.bytes(), "stop request"));
    std::memset(stopSource_->data(), 1, static_cast<size_t>(cell.type.bytes()));
    for (size_t r = 0; r < executable_.rankCount(); ++r) {
      ASSIGN_OR_RETURN(uint8_t * address,
                       executable_.arenas(r).resolve(cell.place, cell.type.bytes(), "@stop"));
      stopAddresses_.push_back(address);
      RETURN_IF_ERROR(
          executable_.computeStream(r).fill(address, 0, cell.type.bytes(), "clear @stop"));
    }
    return Status::ok();
  }

  Status createFeeds() {
    std::vector<bool> isTaken(role_.cells.size());
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      for (const plan::Segment::Boundary &in : role_.segments[s].ins) {
        if (!plan::isFeed(role_.cells[in.cell]))
          continue;
        bool isTraining = role_.cells[in.cell].kind == plan::CellKind::Feed;
        if (feedOf_[s] || countRuns(role_.program, s) > 1 || countLoads(role_.segments[s]) > 1)
          return makeStatus(report::PlanCannotRun,
                            fmt::format("segment {} takes more than one series of microbatches",
                                        role_.segments[s].name));
        if (isTaken[in.cell])
          return makeStatus(report::PlanCannotRun,
                            fmt::format("segment {} takes @{}, which another segment takes too",
                                        role_.segments[s].name, role_.cells[in.cell].name));
        isTaken[in.cell] = true;
        ASSIGN_OR_RETURN(feedOf_[s],
                         FeedRing::create(executable_, s, in.cell,
                                          isTraining ? FeedKind::Train : FeedKind::Eval));
      }
    return Status::ok();
  }

  static int countRuns(const std::vector<ProgramNode> &nodes, uint32_t segment) {
    int count = 0;
    for (const ProgramNode &node : nodes)
      count += (node.segment == segment) + countRuns(node.children, segment);
    return count;
  }

  static int64_t countLoads(const plan::Segment &segment) {
    return std::ranges::count(segment.ops, plan::OpKind::BatchLoad, &plan::Op::kind);
  }

  Status runTop(const ProgramNode &node) {
    switch (node.kind) {
    case ProgramNode::Start:
      return options_.isFreshStart ? runSegments(node, options_.check ? &checks_ : nullptr)
                                   : Status::ok();
    case ProgramNode::Run:
      return runSegments(node, options_.check ? &checks_ : nullptr);
    case ProgramNode::Steps:
      return runSteps(node);
    case ProgramNode::Every:
      return makeStatus(report::PlanCannotRun, "'every' is outside 'steps'");
    }
    return Status::ok();
  }

  Status restore() {
    if (!options_.restore || isRestored_)
      return Status::ok();
    isRestored_ = true;
    return options_.restore();
  }

  /// Nothing is queued, and everything that was is reported.
  Status save() {
    if (!options_.keeper || result_.state.step <= lastSaved_)
      return Status::ok();
    lastSaved_ = result_.state.step;
    Status status = options_.keeper->save(result_.state);
    observer_.saved();
    return status;
  }

  /// Saves the state after a queued step.
  Status saveAfter(int64_t step) {
    ASSIGN_OR_RETURN(bool isTaken, options_.keeper->saveAhead(step));
    if (isTaken) {
      lastSaved_ = step;
      return Status::ok();
    }
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(save());
    return startClock();
  }

  Status runSteps(const ProgramNode &steps) {
    stepsNode_ = &steps;
    result_.state.step = lastSaved_ = options_.firstStep;
    int64_t end = std::min(steps.count, options_.stepsEnd);
    observer_.begin(options_.firstStep, end);
    RETURN_IF_ERROR(startClock());
    for (int64_t i = options_.firstStep; i < end && !isEnding_; ++i) {
      timer_.beginStep();
      RETURN_IF_ERROR(requestStop());
      // The first step ends before the next is queued, so that all its allocations are counted.
      RETURN_IF_ERROR(settle(i == options_.firstStep + 1 ? 0 : kStepsAhead - 1));
      if (isEnding_)
        break;
      RETURN_IF_ERROR(traceBefore(i, end));
      if (Status status = runIteration(steps, i); !status.isOk()) {
        // Steps before this one have their results; that they cannot be had either adds nothing.
        static_cast<void>(settle(0));
        return status;
      }
      RETURN_IF_ERROR(traceAfter(i));
      if (options_.keeper && options_.keeper->isDue(i + 1))
        RETURN_IF_ERROR(saveAfter(i + 1));
    }
    RETURN_IF_ERROR(settle(0));
    result_.isStopped = isEnding_;
    RETURN_IF_ERROR(save());
    return options_.keeper ? options_.keeper->finish() : Status::ok();
  }

  /// Steps overlap inside a trace, as without one; before it all have ended.
  Status traceBefore(int64_t iteration, int64_t end) {
    if (!options_.trace || traceEnd_ > 0)
      return Status::ok();
    int64_t begin = std::min(options_.firstStep + kStepsBeforeTrace, end - kStepsTraced);
    if (iteration < begin)
      return Status::ok();
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(executable_.backend().synchronize());
    traceBegin_ = iteration;
    traceEnd_ = std::min(iteration + kStepsTraced, end);
    RETURN_IF_ERROR(executable_.backend().startTrace());
    return startClock();
  }

  Status traceAfter(int64_t iteration) {
    if (!options_.trace || iteration + 1 != traceEnd_)
      return Status::ok();
    RETURN_IF_ERROR(settle(0));
    RETURN_IF_ERROR(executable_.backend().synchronize());
    ASSIGN_OR_RETURN(std::vector<trace::Span> spans, executable_.backend().stopTrace());
    RETURN_IF_ERROR(options_.trace(std::move(spans), static_cast<int>(traceEnd_ - traceBegin_)));
    return startClock();
  }

  Status runIteration(const ProgramNode &steps, int64_t iteration) {
    OpObservers observers;
    bool wantsOps = options_.opObserver && options_.wantsOps && options_.wantsOps(iteration + 1);
    if (wantsOps)
      observers.observers[0] = options_.opObserver;
    if (options_.check)
      observers.observers[1] = &checks_;
    finder_.setStep(iteration + 1);
    guards_.setStep(iteration + 1);
    exec::OpObserver *observer = wantsOps || options_.check ? &observers : nullptr;
    bool isMarked = false;
    for (const ProgramNode &node : steps.children) {
      if (node.kind == ProgramNode::Every) {
        if (!isMarked)
          RETURN_IF_ERROR(mark(Mark::Step, iteration));
        isMarked = true;
        if ((iteration + 1) % node.count == 0)
          RETURN_IF_ERROR(runEvery(node, iteration, observer));
        continue;
      }
      RETURN_IF_ERROR(runSegments(node, observer));
    }
    return isMarked ? Status::ok() : mark(Mark::Step, iteration);
  }

  Status runEvery(const ProgramNode &every, int64_t iteration, exec::OpObserver *observer) {
    for (const ProgramNode &node : every.children)
      RETURN_IF_ERROR(runSegments(node, observer));
    return mark(Mark::Evaluation, iteration);
  }

  /// Runs all microbatches of a body, or a segment `count` times; with an observer, op by op.
  Status runSegments(const ProgramNode &node, exec::OpObserver *observer) {
    if (node.kind != ProgramNode::Run && node.kind != ProgramNode::Start)
      return makeStatus(report::PlanCannotRun,
                        "a step contains something other than 'run' and 'every'");
    int64_t visit = visits_[node.segment]++;
    for (int64_t i = 0; i < node.count; ++i)
      RETURN_IF_ERROR(runMicrobatch(node, visit, i, observer));
    return Status::ok();
  }

  Status runMicrobatch(const ProgramNode &node, int64_t visit, int64_t microbatch,
                       exec::OpObserver *observer) {
    const plan::Segment &segment = role_.segments[node.segment];
    plan::Variant variant = plan::Variant::Only;
    if (segment.body && node.count > 1)
      variant = microbatch == 0                ? plan::Variant::First
                : microbatch == node.count - 1 ? plan::Variant::Last
                                               : plan::Variant::Middle;
    hal::LaunchParams params{visit, microbatch, node.count};
    std::optional<FeedRing> &feed = feedOf_[node.segment];
    if (feed) {
      RETURN_IF_ERROR(
          timer_.wait([&] { return feed->waitForSlot(visit, microbatch, node.count); }));
      RETURN_IF_ERROR(
          feed->write(source_, visit, visit + visitsBefore(*feed), microbatch, node.count));
    }
    if (observer) {
      RETURN_IF_ERROR(executable_.runOpByOp(node.segment, variant, params, observer));
    } else {
      RETURN_IF_ERROR(timer_.wait([&] { return executable_.makeRoom(node.segment, variant); }));
      RETURN_IF_ERROR(executable_.launch(node.segment, variant, params));
    }
    return feed ? feed->markQueued(visit, microbatch, node.count) : Status::ok();
  }

  /// Visits of the job before this process began: one a step, or one every so many steps.
  int64_t visitsBefore(const FeedRing &feed) const {
    if (feed.kind() == FeedKind::Train)
      return options_.batchesConsumed.value_or(options_.firstStep);
    for (const ProgramNode &node : stepsNode_ ? stepsNode_->children : role_.program)
      if (node.kind == ProgramNode::Every)
        return options_.firstStep / node.count;
    return 0;
  }

  /// With empty queues: host work in between does not belong to a step.
  Status startClock() {
    if (!stepAddress_)
      return Status::ok();
    clockStartsAt_ = marked_;
    return executable_.computeStream(0).record(*clockStart_);
  }

  Status mark(Mark::Kind kind, int64_t iteration) {
    if (!stepAddress_)
      return Status::ok();
    // A step with many evaluations: times are measured from the mark before the oldest.
    if (marked_ - settled_ == kMarks - 1)
      RETURN_IF_ERROR(settleOldest());
    size_t slot = marked_ % kMarks;
    marks_[slot].kind = kind;
    marks_[slot].iteration = iteration;
    hal::Stream &stream = executable_.computeStream(0);
    RETURN_IF_ERROR(stream.copy(readback_->data() + slot * sizeof(StepState), stepAddress_,
                                sizeof(StepState), "read the step state back"));
    RETURN_IF_ERROR(stream.record(*marks_[slot].event));
    marks_[slot].host = timer_.step();
    ++marked_;
    stepsMarked_ += kind == Mark::Step;
    return Status::ok();
  }

  /// Waits until at most this many steps are running, and reports those that have ended.
  Status settle(int stepsLeft) {
    while (settled_ < marked_ && (stepsMarked_ > stepsLeft || stepsLeft == 0))
      RETURN_IF_ERROR(settleOldest());
    return Status::ok();
  }

  Status settleOldest() {
    Mark &mark = marks_[settled_ % kMarks];
    RETURN_IF_ERROR(timer_.wait([&] { return mark.event->synchronize(); }));
    StepState state;
    std::memcpy(&state, readback_->data() + (settled_ % kMarks) * sizeof state, sizeof state);
    hal::Event &before =
        settled_ == clockStartsAt_ ? *clockStart_ : *marks_[(settled_ - 1) % kMarks].event;
    double took = mark.event->secondsSince(before);
    ++settled_;
    if (mark.kind == Mark::Evaluation) {
      result_.state = state;
      observer_.evaluated(state);
      return Status::ok();
    }
    --stepsMarked_;
    observer_.queued(mark.host);
    if (!std::isnan(took))
      observer_.took(took);
    return endStep(mark.iteration, state);
  }

  Status endStep(int64_t iteration, const StepState &state) {
    if (state.nonfinite)
      return explainNonFinite(iteration, state);
    result_.state = state;
    observer_.step(state);
    memory_.stepEnded();
    isEnding_ = isEnding_ || state.stop;
    if (state.halt)
      return makeStatus(StatusCode::Aborted, "step {}: the plan's ops ended the run",
                        iteration + 1);
    return options_.keeper ? options_.keeper->stepEnded(state) : Status::ok();
  }

  /// The update changed nothing, and neither did those queued after it (a halt persists), so the
  /// state is that of the step's beginning. Its microbatches run again, with every result checked.
  Status explainNonFinite(int64_t iteration, const StepState &state) {
    RETURN_IF_ERROR(executable_.backend().synchronize());
    finder_.setStep(iteration + 1);
    int64_t visit = iteration - options_.firstStep;
    for (const ProgramNode &node : stepsNode_->children)
      if (node.kind == ProgramNode::Run)
        for (int64_t i = 0; i < node.count; ++i)
          RETURN_IF_ERROR(runMicrobatch(node, visit, i, &finder_));
    return makeStatus(StatusCode::Numeric,
                      "step {}: loss {}, gradient norm {}; the same microbatches, run again op by "
                      "op, gave finite "
                      "results only",
                      iteration + 1, state.loss, state.gradNorm);
  }

  Status requestStop() {
    if (!options_.stopRequest || isStopRequested_ ||
        options_.stopRequest->load(std::memory_order_relaxed) == 0)
      return Status::ok();
    isStopRequested_ = true;
    if (stopAddresses_.empty()) { // a plan without the flag: only this process decides
      isEnding_ = true;
      return Status::ok();
    }
    for (size_t r = 0; r < stopAddresses_.size(); ++r)
      RETURN_IF_ERROR(executable_.computeStream(r).copy(stopAddresses_[r], stopSource_->data(),
                                                        stopSource_->bytes(), "set @stop"));
    return Status::ok();
  }

  exec::Executable &executable_;
  const plan::Role &role_;
  BatchSource &source_;
  RunObserver &observer_;
  const RunOptions &options_;
  NonFiniteFinder finder_;
  GuardCheck guards_;
  OpObservers checks_; ///< both
  MemoryWatch memory_;
  RunResult result_;

  std::vector<int64_t> visits_;                 ///< by segment
  std::vector<std::optional<FeedRing>> feedOf_; ///< by segment
  const ProgramNode *stepsNode_ = nullptr;

  const uint8_t *stepAddress_ = nullptr; ///< on the first rank of this process
  std::unique_ptr<hal::Buffer> readback_, stopSource_;
  std::vector<uint8_t *> stopAddresses_;
  std::array<Mark, kMarks> marks_;
  std::unique_ptr<hal::Event> clockStart_; ///< mark clockStartsAt_ is measured from it
  size_t clockStartsAt_ = 0;
  size_t marked_ = 0, settled_ = 0;
  int stepsMarked_ = 0; ///< step marks under way
  bool isStopRequested_ = false, isEnding_ = false, isRestored_ = false;
  HostTimer timer_;
  int64_t lastSaved_ = 0;                 ///< step
  int64_t traceBegin_ = 0, traceEnd_ = 0; ///< steps; an end of 0: no trace has begun
};

} // namespace

Result<RunResult> runProgram(exec::Executable &executable, BatchSource &source,
                             RunObserver &observer, const RunOptions &options) {
  RunLoop loop(executable, source, observer, options);
  Result<RunResult> result = loop.run();
  if (!result.isOk()) // queued work reads and writes the loop's buffers
    static_cast<void>(executable.backend().synchronize());
  return result;
}

} // namespace shardc::run
