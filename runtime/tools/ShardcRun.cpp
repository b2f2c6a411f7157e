// shardc-run: reads a placed plan, verifies it, checks the environment, and trains.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Explain.h"
#include "runtime/exec/Mesh.h"
#include "runtime/launch/RankReports.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Parser.h"
#include "runtime/plan/SkippedSteps.h"
#include "runtime/plan/Stages.h"
#include "runtime/plan/Syntax.h"
#include "runtime/run/Dump.h"
#include "runtime/run/JobCheck.h"
#include "runtime/run/JobData.h"
#include "runtime/run/Links.h"
#include "runtime/run/MemoryTable.h"
#include "runtime/run/ModelFlops.h"
#include "runtime/run/PlantedFault.h"
#include "runtime/run/Preflight.h"
#include "runtime/run/ProgressOutput.h"
#include "runtime/run/RunLoop.h"
#include "runtime/save/Loader.h"
#include "runtime/save/Saver.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Options.h"
#include "runtime/tools/ProgressWatch.h"
#include "runtime/tools/Rehearsal.h"
#include "runtime/tools/Signals.h"
#include "runtime/tools/Variables.h"
#include "runtime/trace/Breakdown.h"
#include "runtime/trace/ChromeTrace.h"
#include "runtime/verify/Verify.h"

namespace shardc::tools {
namespace {

/// FNV-1a: equal for equal texts, on every machine.
uint64_t hashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text)
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

Result<plan::Plan> loadPlan(const RunToolOptions &options, uint64_t &hash) {
  constexpr uint64_t kBytesMax = plan::limits::kTextBytesMax;
  ASSIGN_OR_RETURN(std::string text, options.planFd >= 0 ? readDescriptor(options.planFd, kBytesMax)
                                                         : readFile(options.planPath, kBytesMax));
  hash = hashOf(text);
  return plan::parse(text, options.planFd >= 0 ? "<plan>" : options.planPath);
}

/// Everything that a run needs besides the plan.
struct Environment {
  const BackendEntry &entry;
  /// Takes what the backend and its kernels warn of on this rank, until all ranks are told of it.
  ReportList warnings = {};
  std::unique_ptr<BackendSession> session = nullptr; ///< outlives the backend
  std::unique_ptr<hal::Backend> backend;
  std::unique_ptr<exec::FaultHooks> faults; ///< what a test plants; null: nothing
  std::unique_ptr<run::BatchSource> source;
  run::MetricsWriter metrics;
  run::EventLog events;
  std::unique_ptr<save::Saver> saver;   ///< null where the plan does not save
  std::unique_ptr<save::Loader> loader; ///< null where it does not load
  /// Takes what saver and loader tell. Before the run begins it is kept.
  ReportList kept;
  ReportSink tell = kept.sink();
};

/// Makes what saves and loads. Saving comes first: it puts back what an interrupted save put aside.
void prepareCheckpoints(const plan::Plan &plan, const ProcessContext &process,
                        Environment &environment, std::vector<Report> &findings) {
  if (Status status = save::checkCheckpointOptions(plan); !status.isOk())
    return findings.push_back(status.report());
  ReportSink tell = [&environment](const Report &report) { environment.tell(report); };
  auto saver = plan.job.validation.skipTrain // has nothing to save
                   ? Result<std::unique_ptr<save::Saver>>(nullptr)
                   : save::Saver::create(plan, tell, process.client);
  if (saver.isOk())
    environment.saver = std::move(*saver);
  else
    findings.push_back(saver.status().report());
  auto loader = save::Loader::open(plan, tell);
  if (loader.isOk())
    environment.loader = std::move(*loader);
  else
    return findings.push_back(loader.status().report());
  if (!environment.saver)
    return;
  const save::Loader *from = environment.loader.get();
  std::string continued = from ? from->continuedFolder() : "";
  int64_t step = continued.empty() ? 0 : from->progress().step;
  if (Status status = environment.saver->checkOverwrites(step, continued); !status.isOk())
    findings.push_back(status.report());
}

run::EventOptions eventOptionsOf(const plan::Plan &plan, const save::Loader *loader) {
  const auto &logger = plan.job.logger;
  run::EventOptions out;
  out.interval = logger.tensorboardLogInterval;
  out.logInterval = logger.logInterval;
  out.windowSteps = logger.throughputWindowSize;
  out.batchSize = plan.job.train.globalBatchSize;
  out.sequenceLength = plan.job.model.seqLength;
  out.worldSize = plan.worldSize();
  out.flopsPerToken = run::modelFlopsPerToken(plan) / static_cast<double>(plan.worldSize());
  if (loader && loader->hasCheckpoint())
    out.skippedSamples = loader->progress().skippedTrainSamples;
  out.lossScale = logger.logLossScaleToTensorboard;
  out.perplexity = logger.logValidationPplToTensorboard;
  out.ranks = logger.logWorldSizeToTensorboard;
  out.times = logger.logTimersToTensorboard;
  out.decoupledLr = plan.job.optimizer.decoupledLr >= 0;
  out.throughput = logger.logThroughputToTensorboard;
  return out;
}

/// Makes the environment; returns all that is wrong with it here.
std::vector<Report> prepare(const plan::Plan &plan, const RunToolOptions &options,
                            const ProcessContext &process, Environment &environment) {
  std::vector<Report> findings = run::preflight(plan, options.backend, environment.entry.findKernel,
                                                {options.simulateRanks > 0});
  auto need = [&findings](const Status &status) {
    if (!status.isOk())
      findings.push_back(status.report());
    return status.isOk();
  };
  need(checkVariables(plan, options));
  need(environment.session->judgeDevices(process.client));
  need(run::checkTrace(options.backend, !options.trace.empty(), options.noGraph, options.check));
  if (options.simulateRanks > 0 && options.simulateRanks != plan.worldSize())
    findings.push_back(
        makeReport(report::OtherRanksSimulated, plan.worldSize(), options.simulateRanks));
  if (std::vector<Report> unfit = run::checkJob(plan); !unfit.empty())
    findings.insert(findings.end(), unfit.begin(), unfit.end());
  else if (auto source = run::openJobData(plan); need(source.status()))
    environment.source = std::move(*source);
  prepareCheckpoints(plan, process, environment, findings);
  if (!options.metrics.empty() && process.isFirst())
    need(environment.metrics.open(options.metrics));
  if (const std::string &folder = plan.job.logger.tensorboardDir;
      !folder.empty() && process.isFirst() && findings.empty())
    need(environment.events.open(folder, eventOptionsOf(plan, environment.loader.get())));
  return findings;
}

/// What there is to do on a machine without the backend that a plan is for.
constexpr const char *kHostOffer =
    "'shardc run R.recipe --backend=host' compiles the recipe for this machine's processor";

/// The backend comes last: making it takes all ranks.
void prepareBackend(const plan::Plan &plan, const ProcessContext &process, Environment &environment,
                    std::vector<Report> &findings) {
  auto backend = environment.session->makeBackend(process.client);
  if (!backend.isOk()) {
    Report finding = backend.status().report();
    if (backend.status().code() == StatusCode::Unavailable)
      finding.text += std::string("; ") + kHostOffer;
    return findings.push_back(std::move(finding));
  }
  environment.backend = std::move(*backend);
  Status memory =
      run::checkMemory(plan, *environment.backend, static_cast<int64_t>(process.processesHere()));
  if (!memory.isOk())
    findings.push_back(memory.report());
}

/// What any rank found, each once.
Result<std::vector<Report>> findingsOfAll(const ProcessContext &process,
                                          std::vector<Report> findings) {
  if (!process.client)
    return findings;
  ASSIGN_OR_RETURN(auto byRank, launch::gatherReports(
                                    *process.client, "what keeps the plan from running", findings));
  std::vector<Report> merged;
  for (const std::vector<Report> &reports : byRank)
    for (const Report &report : reports)
      if (std::ranges::find(merged, report) == merged.end())
        merged.push_back(report);
  return merged;
}

/// Tells what there is to warn of on any rank, and on which, once.
Status tellWarnings(const ProcessContext &process, ReportList &warnings) {
  std::vector<std::vector<Report>> byRank = {warnings.take()};
  if (process.client) {
    ASSIGN_OR_RETURN(byRank, launch::gatherReports(*process.client, "warnings", byRank.front()));
  }
  if (process.isFirst())
    for (const Report &report : launch::mergeReports(byRank))
      process.console.tell(report);
  return Status::ok();
}

/// What all ranks do together once each has all that its steps take.
Status endSetUp(const ProcessContext &process, ProgressWatch &watch, Environment &environment) {
  RETURN_IF_ERROR(watch.start());
  RETURN_IF_ERROR(environment.session->endMeeting());
  return tellWarnings(process, environment.warnings);
}

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

/// Steps of the job after which this process ends: its last, or the next at which the recipe lets
/// it leave, which it does not after a step that is passed over.
int64_t lastStep(const plan::Plan &plan, int64_t firstStep, const std::vector<int64_t> &skipped) {
  int64_t interval = plan.job.train.exitInterval;
  if (interval == 0)
    return std::numeric_limits<int64_t>::max();
  int64_t last = (firstStep / interval + 1) * interval;
  while (last < plan.job.train.trainIters && std::ranges::binary_search(skipped, last))
    last += interval;
  return last;
}

/// What the recipe says of when steps end and evaluations begin.
void setLength(const plan::Plan &plan, const ProcessContext &process, run::RunOptions &options) {
  constexpr double kMinutesMax = 5e7; // about a century
  options.evaluatesOnly = plan.job.validation.skipTrain;
  options.firstEvaluation = plan.job.validation.startEvalAtIter;
  options.skippedSteps = plan::skippedSteps(plan.job).value_or(std::vector<int64_t>());
  if (double minutes = plan.job.train.exitDurationInMins; minutes > 0)
    options.deadline =
        process.begin +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double, std::ratio<60>>(std::min(minutes, kMinutesMax)));
}

/// Where the run begins, how it gets there, and what it saves. From here on what is told goes to
/// `tell`.
void connectCheckpoints(Environment &environment, exec::Executable &executable,
                        const ReportSink &tell, run::RunOptions &options) {
  if (!environment.saver && !options.evaluatesOnly)
    tell(makeReport(report::SavesNothing));
  for (const Report &report : environment.kept.take())
    tell(report);
  environment.tell = tell;
  if (save::Loader *loader = environment.loader.get(); loader && loader->hasCheckpoint()) {
    options.firstStep = loader->progress().step;
    options.batchesConsumed = loader->batchesConsumed();
    options.isFreshStart = !loader->isWhole();
    options.restore = [loader, &executable] { return loader->restore(executable); };
    if (environment.saver)
      environment.saver->setBegin(loader->progress());
  }
  if (save::Saver *saver = environment.saver.get()) {
    saver->attach(executable);
    options.keeper = saver;
  }
}

void printMachine(exec::Executable &executable, const Environment &environment,
                  const Console &console) {
  if (environment.entry.traits.isOnGpus) // others register nothing
    for (const std::string &channel : executable.unregisteredChannels())
      console.tell(makeReport(report::ChannelNotRegistered, channel));
  double gathers = executable.measuredGatherGBs();
  fmt::print("{}{}", run::linkText(executable.plan(), executable.device(0).links(), gathers),
             environment.session->meetingText());
  run::judgeLinks(executable.plan(), gathers, console.sink());
  fmt::print(
      "{}{}",
      run::memoryTable(executable.role(), executable.workspaceBytes(0), executable.landingBytes(0)),
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

run::ProgressOptions progressOptionsOf(const plan::Plan &plan, ProcessContext &process,
                                       Environment &environment) {
  run::ProgressOptions out;
  out.isTerminal = ::isatty(STDOUT_FILENO) == 1;
  out.isQuiet = !process.isFirst();
  out.steps = &process.steps;
  out.logInterval = std::max<int64_t>(plan.job.logger.logInterval, 1);
  out.tokensPerStep = plan.job.train.globalBatchSize * plan.job.model.seqLength;
  out.flopsPerToken = run::modelFlopsPerToken(plan) / static_cast<double>(plan.worldSize());
  out.peakFlops = run::peakFlops(plan);
  out.metrics = &environment.metrics;
  out.events = &environment.events;
  out.fields.lossScale = plan::scalingOf(plan.job) != plan::Scaling::None;
  out.fields.skipped = out.fields.lossScale || plan.job.optimizer.gradNormSkipThreshold > 0;
  out.fields.decoupledLr = plan.job.optimizer.decoupledLr >= 0;
  out.fields.weightDecay =
      plan.job.scheduler.weightDecayIncrStyle != plan::Job::WeightDecayStyle::Constant;
  out.tell = process.console.sink();
  return out;
}

/// Makes of this process' memory that of all ranks.
Status gatherMemory(const ProcessContext &process, std::optional<run::MemoryChange> &memory) {
  if (!process.client || !memory) // all ranks have run steps, or none
    return Status::ok();
  ASSIGN_OR_RETURN(memory, run::gatherMemoryChange(*process.client, *memory));
  return Status::ok();
}

/// Takes what all ranks have to tell alike. Both outlive it.
ReportSink tellOnce(const ProcessContext &process, run::ProgressOutput &progress) {
  return [&](const Report &report) {
    if (!process.isFirst())
      return;
    progress.clearLine();
    process.console.tell(report);
  };
}

/// Of the steps that are traced: prints a summary, and writes the file.
void connectTrace(const plan::Plan &plan, exec::Executable &executable, const std::string &path,
                  run::ProgressOutput &progress, bool &isTraced, run::RunOptions &runOptions) {
  runOptions.trace = [&](std::vector<trace::Span> spans, int steps) -> Status {
    isTraced = true;
    int rank = executable.worldRank(0);
    progress.clearLine();
    fmt::print("{}", trace::toText(trace::breakDown(spans, rank, steps, trace::tracedOps(plan))));
    auto nameOf = [&](int of) {
      return fmt::format("rank {}{}", of, plan::stageOf(plan, exec::roleOf(plan, of)));
    };
    return writeFileAtomic(path, trace::chromeTrace(spans, nameOf));
  };
}

int train(const plan::Plan &plan, const RunToolOptions &options, ProcessContext &process,
          Environment &environment) {
  SetUpWatch setUp(process);
  auto executable =
      exec::Executable::create(plan, *environment.backend, environment.entry.findKernel,
                               executableOptionsOf(options, process, environment));
  if (!executable.isOk())
    return process.fail(executable.status(), executable.status().code() == StatusCode::InvalidInput
                                                 ? kInputStatus
                                                 : kFailureStatus);
  ProgressWatch watch(**executable, process, [saver = environment.saver.get()] {
    return saver != nullptr && saver->isWriting();
  });
  if (Status status = endSetUp(process, watch, environment); !status.isOk())
    return process.fail(status, kFailureStatus);
  if (process.client) // the others would wait in collectives for a rank that is gone
    process.client->onAbort([backend = environment.backend.get()] { backend->abort(); });

  run::ProgressOutput progress(progressOptionsOf(plan, process, environment));
  ReportSink tell = tellOnce(process, progress);
  run::RunOptions runOptions;
  runOptions.check = options.check;
  setLength(plan, process, runOptions);
  connectCheckpoints(environment, **executable, tell, runOptions);
  if (process.isFirst())
    printMachine(**executable, environment, process.console);
  runOptions.stepsEnd = lastStep(plan, runOptions.firstStep, runOptions.skippedSteps);
  holdSignals(process.client != nullptr);
  runOptions.stopRequest = &stopRequests();
  bool isTraced = false;
  if (!options.trace.empty() && process.isFirst())
    connectTrace(plan, **executable, options.trace, progress, isTraced, runOptions);
  std::unique_ptr<run::Dumper> dumper;
  if (!options.dumps.empty()) {
    auto made = makeDumper(**executable, options);
    if (!made.isOk())
      return process.fail(made.status(), kInputStatus);
    dumper = std::move(*made);
    runOptions.opObserver = dumper.get();
    runOptions.wantsOps = [step = options.dumpStep](int64_t now) { return now == step; };
  }

  auto result = run::runProgram(**executable, *environment.source, progress, runOptions);
  if (environment.saver)
    environment.saver->abandon(); // after a run that ended well nothing is under way
  Status dumped = dumper ? dumper->finish() : Status::ok();
  if (!result.isOk()) {
    progress.clearLine();
    return process.fail(result.status(), kFailureStatus);
  }
  if (Status status = gatherMemory(process, result->memory); !status.isOk())
    return process.fail(status, kFailureStatus);
  // The messages about metrics and saves were printed when they failed.
  bool isAllWritten = progress.metricsStatus().isOk() &&
                      (!environment.saver || environment.saver->lastStatus().isOk());
  progress.end(*result, isAllWritten);
  if (result->isStopped && !environment.saver)
    tell(makeReport(report::NothingSaved));
  if (runOptions.trace && !isTraced)
    tell(makeReport(report::TraceNotWritten, options.trace));
  if (!dumped.isOk())
    return process.fail(dumped, kFailureStatus);
  return isAllWritten ? 0 : kFailureStatus;
}

/// Runs the ranks of this process.
int runRanks(const plan::Plan &plan, const RunToolOptions &options, const BackendEntry &entry,
             ProcessContext &process) {
  Environment environment{.entry = entry};
  environment.session = entry.beginSession(plan, options, environment.warnings.sink());
  if (!entry.traits.computes) {
    int status = rehearse(plan, options, entry, *environment.session, process);
    if (process.client)
      process.client->leave(status);
    return status;
  }
  if (options.fault.kind != run::FaultKind::Nothing)
    environment.faults = std::make_unique<run::PlantedFault>(options.fault);
  auto findings = findingsOfAll(process, prepare(plan, options, process, environment));
  if (findings.isOk() && (findings->empty() || !process.client)) // all that is wrong in one go
    prepareBackend(plan, process, environment, *findings);
  if (!findings.isOk())
    return process.fail(findings.status(), kInputStatus);
  if (!findings->empty())
    return process.fail(*findings, kInputStatus);
  int status = train(plan, options, process, environment);
  if (process.client)
    process.client->leave(status);
  return status;
}

/// Only a plan can name a backend that this program does not have.
Status missingBackend(const plan::Plan &plan, const RunToolOptions &options) {
  return makeStatus(report::BackendNotBuilt, options.backend, kHostOffer, plan.worldSize());
}

int run(RunToolOptions options) {
  if (!options.refuse.empty())
    return refuseJob(options);
  auto refuse = [&options](const Status &status) {
    options.console.tell(status.report());
    return kInputStatus;
  };
  const char *planted = std::getenv("SHARDC_FAULT");
  Result<run::Fault> fault = run::Fault::parse(planted ? planted : "");
  if (!fault.isOk())
    return refuse(fault.status());
  options.fault = *fault;
  uint64_t hash = 0;
  Result<plan::Plan> plan = loadPlan(options, hash);
  if (!plan.isOk())
    return refuse(plan.status());
  if (Status status = plan::verified(*plan); !status.isOk())
    return refuse(status);
  std::string name = backendNameOf(*plan, options);
  const BackendEntry *backend = findBackend(name);
  if (Status status = setVariables(*plan, backend, options.console); !status.isOk())
    return refuse(status);
  // Ranks that a launcher has started report this together, at the rendezvous.
  if (Status status = checkVariables(*plan, options);
      !status.isOk() && !isLaunched() && !options.explain)
    return refuse(status);
  options.backend = name;
  if (!backend)
    return refuse(missingBackend(*plan, options));
  if (options.explain) {
    fmt::print("{}", exec::explain(*plan, backend->findKernel));
    return 0;
  }
  return runJob(*plan, hash, options, [&](ProcessContext &process) {
    return runRanks(*plan, options, *backend, process);
  });
}

} // namespace
} // namespace shardc::tools

int main(int argc, char **argv) {
  // Ranks that a launcher has started agree on where they end, once they have met.
  if (shardc::tools::isLaunched())
    shardc::tools::holdSignals(/*isQuiet=*/true);
  shardc::tools::watchSignals();
  int status = 0;
  auto options = shardc::tools::parseCommandLine(argc, argv, status);
  return options ? shardc::tools::run(*options) : status;
}
