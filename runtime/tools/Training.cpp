// Trains, with one plan after another if the batch grows.
#include "runtime/tools/Commands.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Text.h"
#include "runtime/run/Dump.h"
#include "runtime/run/Links.h"
#include "runtime/run/MemoryTable.h"
#include "runtime/run/ModelFlops.h"
#include "runtime/run/Preflight.h"
#include "runtime/run/ProgressOutput.h"
#include "runtime/save/ReplicaCheck.h"
#include "runtime/tools/ProgressWatch.h"
#include "runtime/tools/Signals.h"
#include "runtime/trace/Breakdown.h"
#include "runtime/trace/ChromeTrace.h"

namespace shardc::tools {
namespace {

Result<std::unique_ptr<run::Dumper>> makeDumper(exec::Executable &executable,
                                                const RunToolOptions &options) {
  std::vector<run::DumpSpec> specs;
  for (const std::string &text : options.dumps) {
    ASSIGN_OR_RETURN(run::DumpSpec spec, run::DumpSpec::parse(text));
    specs.push_back(std::move(spec));
  }
  ASSIGN_OR_RETURN(auto dumper,
                   run::Dumper::create(executable, options.dumpFolder, std::move(specs)));
  dumper->setStep(options.dumpStep);
  return dumper;
}

/// Returns the step after which this process ends: the next multiple of the recipe's exit interval
/// that is not a skipped step; unlimited if the recipe has no interval.
int64_t lastStep(const plan::Plan &plan, int64_t firstStep, const std::vector<int64_t> &skipped) {
  int64_t interval = plan.job.train.exitInterval;
  if (interval == 0)
    return std::numeric_limits<int64_t>::max();
  int64_t last = (firstStep / interval + 1) * interval;
  while (last < plan.job.train.trainIters && std::ranges::binary_search(skipped, last))
    last += interval;
  return last;
}

/// Sets when the recipe's steps end and when its evaluations begin.
void setLength(const plan::Plan &plan, const ProcessContext &process, run::RunOptions &options) {
  constexpr double kMinutesMax = 5e7; // about a century
  options.evaluatesOnly = plan.job.validation.skipTrain;
  options.firstEvaluation = plan.job.validation.startEvalAtIter;
  if (plan.job.validation.multipleValidationSets)
    options.evaluationSets = std::max<int64_t>(std::ssize(plan.job.dataset.validDataPath), 1);
  options.skippedSteps = plan::skippedSteps(plan.job).value_or(std::vector<int64_t>());
  if (double minutes = plan.job.train.exitDurationInMins; minutes > 0)
    options.deadline =
        process.begin +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double, std::ratio<60>>(std::min(minutes, kMinutesMax)));
}

void printMachine(exec::Executable &executable, const Environment &environment,
                  const Console &console) {
  if (environment.entry.traits.isOnGpus) // other backends register nothing
    for (const std::string &channel : executable.unregisteredChannels())
      console.emit(makeReport(report::ChannelNotRegistered, channel));
  double gathers = executable.measuredGatherGBs();
  printOut("{}", run::linkText(executable.plan(), executable.device(0).links(), gathers));
  run::judgeLinks(executable.plan(), gathers, console.sink());
  printOut("{}{}",
           run::memoryTable(executable.role(), executable.workspaceBytes(0),
                            executable.receiveBufferBytes(0)),
           run::deviceMemoryTable(executable.plan(), executable.role(), executable.memoryStages()));
  std::fflush(stdout);
}

exec::ExecutableOptions executableOptionsOf(const RunToolOptions &options, ProcessContext &process,
                                            const Environment &environment) {
  exec::ExecutableOptions out;
  if (environment.loader)
    out.countOffsets = environment.loader->progress().countOffsets;
  out.progress = true;
  out.making = &process.making;
  out.faults = environment.faults.get();
  out.graphs = !options.noGraph;
  out.nodesAhead = environment.entry.traits.queuesNodes ? options.nodesAhead : 0;
  out.productTarget = {options.productMultiprocessors, options.productsBeside};
  out.poisonBetweenSegments = options.scheduleSeed.has_value();
  out.beforeCapture = environment.session->beforeCapture();
  return out;
}

int64_t tokensOfStep(const plan::Plan &plan) {
  return plan::batchSizesOf(plan.job, /*isEval=*/false).global * plan.job.model.seqLength;
}

/// Returns the names of the validation sets, which are their numbers if the recipe has no names.
std::vector<std::string> validationSets(const plan::Job &job) {
  std::vector<std::string> names = job.validation.validationSetNames;
  for (size_t set = names.size(); set < job.dataset.validDataPath.size(); ++set)
    names.push_back(std::to_string(set));
  return names;
}

run::ProgressOptions progressOptionsOf(const plan::Plan &plan, ProcessContext &process,
                                       Environment &environment) {
  run::ProgressOptions out;
  out.isTerminal = ::isatty(STDOUT_FILENO) == 1;
  out.isQuiet = !process.isFirst();
  out.readerGone = requestEnd;
  out.lastStep = &process.steps;
  out.logInterval = std::max<int64_t>(plan.job.logger.logInterval, 1);
  out.tokensPerStep = tokensOfStep(plan);
  out.flopsPerToken = run::modelFlopsPerToken(plan) / static_cast<double>(plan.worldSize());
  out.peakFlops = run::peakFlops(plan);
  if (plan.job.validation.multipleValidationSets)
    out.sets = validationSets(plan.job);
  out.metrics = &environment.metrics;
  out.events = &environment.events;
  out.fields.lossScale = plan::scalingOf(plan.job) != plan::Scaling::None;
  out.fields.skipped = out.fields.lossScale || plan.job.optimizer.gradNormSkipThreshold > 0;
  out.fields.decoupledLr = plan.job.optimizer.decoupledLr >= 0;
  out.fields.weightDecay =
      plan.job.scheduler.weightDecayIncrStyle != plan::Job::WeightDecayStyle::Constant;
  out.emit = process.console.sink();
  return out;
}

/// Replaces the memory figures of this process's ranks by those of all ranks.
Status gatherMemory(const ProcessContext &process, std::optional<run::MemoryChange> &memory) {
  if (!process.client || !memory) // either all ranks have run steps, or none
    return Status::ok();
  ASSIGN_OR_RETURN(memory, run::gatherMemoryChange(*process.client, *memory));
  return Status::ok();
}

/// Runs all plans, from the first one that has steps left.
class Training {
public:
  Training(std::span<const plan::Plan> plans, const RunToolOptions &options,
           ProcessContext &process, Environment &environment)
      : plans_(plans), options_(options), process_(process), environment_(environment),
        phase_(environment.phase), output_(progressOptionsOf(plan(), process, environment)) {}

  int run() {
    begin();
    std::optional<int> failure;
    while (!(failure = runPhase()) && goesOn()) {
      ++phase_;
      if (Status status = turn(); !status.isOk())
        return process_.fail(status, kFailureStatus);
    }
    return failure ? *failure : end();
  }

private:
  const plan::Plan &plan() const { return plans_[phase_]; }
  bool isLast() const { return phase_ + 1 == plans_.size(); }

  /// A sink for reports that are equal on all ranks.
  ReportSink emit() {
    return [this](const Report &report) {
      if (!process_.isFirst())
        return;
      output_.clearLine();
      process_.console.emit(report);
    };
  }

  /// Whether the run ends here only to continue with other ranks. All ranks must call it.
  Result<bool> rests() {
    if (!options_.isElastic() || !result_.isStopped)
      return false;
    bool isLate = runOptions_.deadline && std::chrono::steady_clock::now() >= *runOptions_.deadline;
    bool isAsked = isLate || stopRequests().load() > 0;
    std::string_view mine = isAsked ? "ends" : result_.hasEndedAtSave ? "rests" : "";
    ASSIGN_OR_RETURN(std::vector<hal::Peers::Kind> all,
                     process_.client->allKinds("whether the run goes on as other ranks", mine));
    auto isThere = [&all](std::string_view word) {
      return std::ranges::find(all, word, &hal::Peers::Kind::part) != all.end();
    };
    return !isThere("ends") && isThere("rests");
  }

  /// Determines the first and the last step of the run.
  void begin() {
    runOptions_.check = options_.check;
    setLength(plan(), process_, runOptions_);
    runOptions_.overflowsMax = options_.restarts > 0 ? run::kOverflowsMax : 0;
    if (save::Loader *loader = environment_.loader.get(); loader && loader->hasCheckpoint()) {
      progress_ = loader->progress();
      runOptions_.isFreshStart = !loader->isWhole();
    }
    // The number of the next step in a run that started from the beginning.
    int64_t planned = (phase_ == 0 ? 0 : plan::lastStepOf(plans_[phase_ - 1])) +
                      save::batchesConsumed(plan(), progress_);
    stepsAhead_ = plans_.size() > 1 ? progress_.step - planned : 0;
    exitStep_ = lastStep(plan(), progress_.step, runOptions_.skippedSteps);
    runOptions_.stopRequest = &stopRequests();
    if (options_.isElastic())
      runOptions_.endsAtSave = &process_.client->growsTo();
  }

  /// The step after which this plan's part of the run ends.
  int64_t phaseEnd() const { return plan::lastStepOf(plan()) + stepsAhead_; }

  /// Runs a phase; returns the exit status if the run cannot continue.
  std::optional<int> runPhase() {
    process_.phase.store(static_cast<uint32_t>(process_.firstPlan + phase_),
                         std::memory_order_relaxed);
    SetUpWatch setUp(process_);
    auto executable = exec::Executable::create(
        plan(), *environment_.backend, environment_.entry.findKernel,
        executableOptionsOf(options_, process_, environment_), std::move(state_));
    if (!executable.isOk())
      return process_.fail(executable.status(),
                           executable.status().code() == StatusCode::InvalidInput ? kInputStatus
                                                                                  : kFailureStatus);
    ProgressWatch watch(**executable, process_, [saver = environment_.saver.get()] {
      return saver != nullptr && saver->isWriting();
    });
    if (Status status = endSetUp(watch); !status.isOk())
      return process_.fail(status, kFailureStatus);
    printTimings(options_, process_, **executable);
    if (!hasBegun_)
      beginSteps(**executable);
    connect(**executable);
    std::optional<int> failure = runSteps(**executable);
    if (failure || !goesOn())
      return failure;
    Result<exec::StateMemory> state = (*executable)->takeState();
    if (!state.isOk())
      return process_.fail(state.status(), kFailureStatus);
    state_ = std::move(*state);
    return std::nullopt;
  }

  /// Ends the setup, together with all ranks, once each has everything that its steps need.
  Status endSetUp(ProgressWatch &watch) {
    RETURN_IF_ERROR(watch.start());
    return reportWarnings(process_, environment_.warnings);
  }

  /// Runs once, before the first step of this process. From now on reports go to `emit`.
  void beginSteps(exec::Executable &executable) {
    hasBegun_ = true;
    if (progress_.step == 0 && process_.attempt() == 0) // other starts continue an existing file
      environment_.metrics.clear();
    if (process_.client) // the others would wait in collectives for a failed rank
      process_.client->onAbort([backend = environment_.backend.get()] { backend->abort(); });
    if (!environment_.saver && !runOptions_.evaluatesOnly)
      emit()(makeReport(report::SavesNothing));
    for (const Report &report : environment_.kept.take())
      emit()(report);
    environment_.emit = emit();
    const std::string kernels = environment_.backend->kernelsText();
    if (process_.isFirst())
      run::judgeKernels(progress_.kernels, kernels, emit());
    progress_.kernels = kernels;
    if (environment_.saver)
      environment_.saver->setBegin(progress_);
    if (save::Loader *loader = environment_.loader.get(); loader && loader->hasCheckpoint()) {
      runOptions_.restore = [this, loader, &executable]() -> Status {
        RETURN_IF_ERROR(loader->restore(executable));
        return environment_.fromMemory
                   ? environment_.fromMemory->noteRead(emit(), environment_.metrics)
                   : Status::ok();
      };
    }
    if (process_.isFirst())
      printMachine(executable, environment_, process_.console);
    holdSignals(process_.client != nullptr);
  }

  /// Sets the options that differ from plan to plan.
  void connect(exec::Executable &executable) {
    if (phase_ > environment_.phase) // the device does not count skipped steps
      runOptions_.restore = [this, &executable] {
        return save::restoreStep(executable, progress_);
      };
    runOptions_.firstStep = progress_.step;
    runOptions_.batchesConsumed = save::batchesConsumed(plan(), progress_);
    runOptions_.stepsAhead = stepsAhead_;
    runOptions_.stepsEnd = exitStep_;
    if (plans_.size() > 1 && !runOptions_.evaluatesOnly)
      runOptions_.stepsTotal = std::min(plan::lastStepOf(plans_.back()) + stepsAhead_, exitStep_);
    runOptions_.evaluatesTest = isLast() && !plan().job.dataset.testDataPath.empty();
    compareWeights(executable);
    makeSamples(executable);
    if (save::Saver *saver = environment_.saver.get()) {
      saver->attach(executable);
      if (environment_.memory)
        environment_.memory->attach(phase_, executable);
      runOptions_.keeper = saver;
    }
    if (std::string file = process_.traceFile(options_); !file.empty() && !isTraced_)
      connectTrace(executable, std::move(file));
  }

  void makeSamples(exec::Executable &executable) {
    if (!environment_.samples)
      return;
    runOptions_.afterEvaluation = [this, &executable](int64_t step) -> Status {
      ASSIGN_OR_RETURN(std::vector<run::SaidText> texts,
                       environment_.samples->make(executable, process_.client, emit()));
      output_.said(step, texts);
      return Status::ok();
    };
  }

  void compareWeights(exec::Executable &executable) {
    runOptions_.compareInterval = plan().job.train.checkWeightHashInterval;
    runOptions_.compare = [this, &executable](int64_t step) {
      for (size_t rank = 0; rank < executable.rankCount(); ++rank)
        if (options_.fault.strikes(run::FaultKind::CorruptWeights, executable.worldRank(rank)) &&
            step == options_.fault.step)
          RETURN_IF_ERROR(save::corruptWeights(executable, rank));
      return save::compareReplicas(executable, process_.client, step);
    };
  }

  /// For the traced steps, prints a summary and writes two files: the trace, and a table of all
  /// ops.
  void connectTrace(exec::Executable &executable, std::string file) {
    runOptions_.trace = [this, &executable, file](std::vector<trace::Span> spans,
                                                  int steps) -> Status {
      isTraced_ = true;
      int rank = executable.worldRank(0);
      output_.clearLine();
      trace::Breakdown times = trace::breakDown(spans, rank, steps, trace::tracedOps(plan()));
      printOut("{}", trace::toSummary(times));
      auto nameOf = [&](int of) {
        return fmt::format("rank {}{}", of, plan::stageOf(plan(), exec::roleOf(plan(), of)));
      };
      auto *write = file == options_.trace ? writeFileAtomic : replaceFile;
      Status status = write(file, trace::chromeTrace(spans, nameOf));
      if (std::error_code error; status.isOk() && std::filesystem::is_regular_file(file, error))
        status = writeTable(file + ".txt", times);
      isTraceLost_ = !status.isOk(); // training does not depend on it
      if (isTraceLost_)
        emit()(makeReport(report::TraceLost, status.message()));
      return Status::ok();
    };
  }

  Status writeTable(const std::string &path, const trace::Breakdown &times) {
    RETURN_IF_ERROR(replaceFile(path, trace::toText(times)));
    printOut("the time of every op: '{}'\n", plan::printable(path));
    return Status::ok();
  }

  /// Whether the step of --dump is one of this plan's steps.
  bool isDumped() const {
    bool isAfter = plans_.size() == 1 || options_.dumpStep > progress_.step;
    return !options_.dumps.empty() && isAfter && (isLast() || options_.dumpStep <= phaseEnd());
  }

  /// Runs the steps of one plan. Returns an exit status if the process must end, and nothing if the
  /// next plan may follow.
  std::optional<int> runSteps(exec::Executable &executable) {
    std::unique_ptr<run::Dumper> dumper;
    if (isDumped()) {
      auto made = makeDumper(executable, options_);
      if (!made.isOk())
        return process_.fail(made.status(), kInputStatus);
      dumper = std::move(*made);
      runOptions_.wantsOps = [step = options_.dumpStep](int64_t now) { return now == step; };
    }
    runOptions_.opObserver = dumper.get();
    auto result = run::runProgram(executable, *environment_.source, output_, runOptions_);
    if (environment_.saver)
      environment_.saver->abandon(); // if the run has succeeded, no save is in progress
    Status dumped = dumper ? dumper->finish() : Status::ok();
    if (!result.isOk()) {
      output_.clearLine();
      return process_.fail(result.status(), kFailureStatus);
    }
    if (dumped_.isOk())
      dumped_ = std::move(dumped);
    result_ = std::move(*result);
    progress_ = save::progressAfter(plan(), progress_, result_.state);
    return std::nullopt;
  }

  /// Whether the run continues with the next plan.
  bool goesOn() const {
    return !isLast() && !result_.isStopped && !runOptions_.evaluatesOnly &&
           progress_.step == phaseEnd() && progress_.step < exitStep_;
  }

  /// Changes to the next plan, whose executable takes over the state.
  Status turn() {
    runOptions_.isFreshStart = false;
    runOptions_.trace = nullptr;
    if (environment_.saver)
      RETURN_IF_ERROR(environment_.saver->turnTo(plan(), progress_));
    RETURN_IF_ERROR(environment_.source->turnTo(plan()));
    int64_t size = plan::batchSizesOf(plan().job, /*isEval=*/false).global;
    output_.grow(tokensOfStep(plan()));
    environment_.events.grow(progress_.step, size);
    emit()(makeReport(report::BatchGrows, progress_.step + 1, size,
                      plan().job.derived.numMicrobatches));
    return Status::ok();
  }

  /// Prints the summary and decides the exit status. A process that the job no longer needs after a
  /// change of its size waits instead.
  int end() {
    Result<bool> isResting = rests();
    if (!isResting.isOk())
      return process_.fail(isResting.status(), kFailureStatus);
    if (*isResting) {
      output_.clearLine();
      return process_.client->rest();
    }
    if (Status status = gatherMemory(process_, result_.memory); !status.isOk())
      return process_.fail(status, kFailureStatus);
    output_.finishMetrics();
    // The messages about metrics and saves were printed when these failed.
    bool isAllWritten = output_.metricsStatus().isOk() && !isTraceLost_ &&
                        (!environment_.saver || environment_.saver->lastStatus().isOk());
    output_.end(result_, isAllWritten);
    if (result_.isStopped && !environment_.saver)
      emit()(makeReport(report::NothingSaved));
    if (std::string file = process_.traceFile(options_); !file.empty() && !isTraced_)
      emit()(makeReport(report::TraceNotWritten, file));
    if (!dumped_.isOk())
      return process_.fail(dumped_, kFailureStatus);
    return isAllWritten ? 0 : kFailureStatus;
  }

  std::span<const plan::Plan> plans_;
  const RunToolOptions &options_;
  ProcessContext &process_;
  Environment &environment_;
  size_t phase_; ///< index of the plan that runs
  run::ProgressOutput output_;
  run::RunOptions runOptions_;
  save::Progress progress_; ///< before the plan's first step, or after its last one
  int64_t stepsAhead_ = 0;  ///< relative to a run from the beginning with as many samples
  int64_t exitStep_ = 0;    ///< step after which the recipe lets the process end
  exec::StateMemory state_; ///< passed from plan to plan
  run::RunResult result_;   ///< result of the steps of the current plan
  Status dumped_;
  bool hasBegun_ = false, isTraced_ = false, isTraceLost_ = false;
};

} // namespace

int train(std::span<const plan::Plan> plans, const RunToolOptions &options, ProcessContext &process,
          Environment &environment) {
  return Training(plans, options, process, environment).run();
}

} // namespace shardc::tools
