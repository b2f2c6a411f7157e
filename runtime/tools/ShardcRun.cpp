// shardc-run: reads a placed plan, verifies it, checks the environment, and trains.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/checkpoint/RecordFiles.h"
#include "runtime/exec/Dump.h"
#include "runtime/exec/Explain.h"
#include "runtime/exec/JobCheck.h"
#include "runtime/exec/JobData.h"
#include "runtime/exec/Links.h"
#include "runtime/exec/LoadRun.h"
#include "runtime/exec/MemoryTable.h"
#include "runtime/exec/ModelFlops.h"
#include "runtime/exec/PlantedFault.h"
#include "runtime/exec/Preflight.h"
#include "runtime/exec/Report.h"
#include "runtime/exec/RunLoop.h"
#include "runtime/exec/SaveRun.h"
#include "runtime/launch/Texts.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Parser.h"
#include "runtime/plan/Syntax.h"
#include "runtime/plan/Verify.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Options.h"
#include "runtime/tools/Rehearsal.h"
#include "runtime/tools/Signals.h"
#include "runtime/tools/Variables.h"
#include "runtime/tools/Watch.h"
#include "runtime/trace/Breakdown.h"
#include "runtime/trace/ChromeTrace.h"

namespace shardc::tools {
namespace {

int say(const Status &status, int exitStatus) {
  fmt::print(stderr, "shardc-run: error: {}\n", plan::printableLines(status.message()));
  return exitStatus;
}

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
  std::unique_ptr<BackendSession> session; ///< outlives the backend
  std::unique_ptr<hal::Backend> backend;
  std::unique_ptr<exec::FaultHooks> faults; ///< what a test plants; null: nothing
  std::unique_ptr<exec::BatchSource> source;
  exec::MetricsWriter metrics;
  std::unique_ptr<exec::Saver> saver;   ///< null where the plan does not save
  std::unique_ptr<exec::Loader> loader; ///< null where it does not load
  /// What the saver says; before the run begins it is kept.
  std::function<void(const std::string &)> say;
  std::function<void(const Status &)> fail;
  std::vector<std::string> sentences;
};

/// Makes what saves and loads. Saving comes first: it puts back what an interrupted save put aside.
void prepareCheckpoints(const plan::Plan &plan, const Crew &crew, Environment &environment,
                        std::vector<std::string> &findings) {
  std::vector<std::string> unfit = exec::checkCheckpointOptions(plan);
  findings.insert(findings.end(), unfit.begin(), unfit.end());
  if (!unfit.empty())
    return;
  environment.say = [&environment](const std::string &text) {
    environment.sentences.push_back(text);
  };
  auto saver =
      exec::Saver::create(plan,
                          {[&environment](const std::string &text) { environment.say(text); },
                           [&environment](const Status &status) { environment.fail(status); }},
                          crew.member);
  if (saver.isOk())
    environment.saver = std::move(*saver);
  else
    findings.push_back(saver.status().message());
  auto loader = exec::Loader::open(plan);
  if (loader.isOk())
    environment.loader = std::move(*loader);
  else
    findings.push_back(loader.status().message());
}

/// Makes the environment; returns all that is wrong with it here.
std::vector<std::string> prepare(const plan::Plan &plan, const RunToolOptions &options,
                                 const Crew &crew, Environment &environment) {
  std::vector<std::string> findings = exec::preflight(
      plan, options.backend, environment.entry.findKernel, {options.simulateRanks > 0});
  for (const std::string &problem :
       {checkVariables(plan, options), environment.session->judgeDevices(crew.member)})
    if (!problem.empty())
      findings.push_back(problem);
  if (std::string problem =
          exec::checkTrace(options.backend, !options.trace.empty(), options.noGraph, options.check);
      !problem.empty())
    findings.push_back(problem);
  if (options.simulateRanks > 0 && options.simulateRanks != plan.worldSize())
    findings.push_back(fmt::format("the plan has {} ranks; --simulate-ranks={} cannot change that",
                                   plan.worldSize(), options.simulateRanks));
  if (std::vector<std::string> unfit = exec::checkJob(plan); !unfit.empty())
    findings.insert(findings.end(), unfit.begin(), unfit.end());
  else if (auto source = exec::openJobData(plan); source.isOk())
    environment.source = std::move(*source);
  else
    findings.push_back(source.status().message());
  prepareCheckpoints(plan, crew, environment, findings);
  if (!options.metrics.empty() && crew.isFirst())
    if (Status status = environment.metrics.open(options.metrics); !status.isOk())
      findings.push_back(status.message());
  return findings;
}

/// What there is to do on a machine without the backend that a plan is for.
constexpr const char *kHostOffer =
    "'shardc run R.recipe --backend=host' compiles the recipe for this machine's processor";

/// The backend comes last: making it takes all ranks.
void prepareBackend(const plan::Plan &plan, const Crew &crew, Environment &environment,
                    std::vector<std::string> &findings) {
  auto backend = environment.session->makeBackend(crew.member);
  if (!backend.isOk()) {
    bool isMissing = backend.status().code() == StatusCode::Unavailable;
    findings.push_back(backend.status().message() +
                       (isMissing ? std::string("; ") + kHostOffer : std::string()));
    return;
  }
  environment.backend = std::move(*backend);
  std::string memory =
      exec::checkMemory(plan, *environment.backend, static_cast<int64_t>(crew.processesHere()));
  if (!memory.empty())
    findings.push_back(memory);
}

/// What any rank found, each sentence once.
Result<std::vector<std::string>> findingsOfAll(const Crew &crew,
                                               std::vector<std::string> findings) {
  if (!crew.member)
    return findings;
  ASSIGN_OR_RETURN(auto byRank,
                   launch::gatherTexts(*crew.member, "what keeps the plan from running", findings));
  std::vector<std::string> merged;
  for (const std::vector<std::string> &texts : byRank)
    for (const std::string &text : texts)
      if (std::ranges::find(merged, text) == merged.end())
        merged.push_back(text);
  return merged;
}

/// Says what the backend has to warn of on any rank, and on which, once.
Status tellWarnings(const Crew &crew, BackendSession &session) {
  std::vector<std::vector<std::string>> byRank = {session.takeWarnings()};
  if (crew.member) {
    ASSIGN_OR_RETURN(byRank, launch::gatherTexts(*crew.member, "warnings", byRank.front()));
  }
  if (crew.isFirst())
    for (const std::string &text : launch::mergeTexts(byRank))
      fmt::print(stderr, "shardc-run: warning: {}\n", plan::printable(text));
  return Status::ok();
}

/// What all ranks do together once each has all that its steps take.
Status endSetUp(const Crew &crew, Watch &watch, BackendSession &session) {
  RETURN_IF_ERROR(watch.start());
  RETURN_IF_ERROR(session.endMeeting());
  return tellWarnings(crew, session);
}

Result<std::unique_ptr<exec::Dumper>> makeDumper(exec::Executable &executable,
                                                 const RunToolOptions &options) {
  std::vector<exec::DumpSpec> specs;
  for (const std::string &text : options.dumps) {
    ASSIGN_OR_RETURN(exec::DumpSpec spec, exec::DumpSpec::parse(text));
    specs.push_back(std::move(spec));
  }
  ASSIGN_OR_RETURN(auto dumper,
                   exec::Dumper::create(executable, options.dumpFolder, std::move(specs)));
  dumper->setStep(options.dumpStep);
  return dumper;
}

/// Steps of the job after which this process ends: its last, or the next at which the recipe lets
/// it leave.
int64_t lastStep(const plan::Plan &plan, int64_t firstStep) {
  int64_t interval = plan.job.train.exitInterval;
  return interval > 0 ? (firstStep / interval + 1) * interval : std::numeric_limits<int64_t>::max();
}

/// Printed at the beginning of a run without a folder to save in, and when it is stopped.
constexpr const char *kSavesNothing =
    "this run saves nothing: its recipe sets no 'checkpoint.save'; --set checkpoint.save=FOLDER "
    "saves its state\n";
constexpr const char *kSavedNothing =
    "nothing was saved; --set checkpoint.save=FOLDER would have kept it\n";

/// Where the run begins, how it gets there, and what it saves.
void connectCheckpoints(Environment &environment, exec::Executable &executable,
                        exec::Report &report, exec::RunOptions &options, bool isFirst) {
  if (!environment.saver && isFirst)
    fmt::print("{}", kSavesNothing);
  if (exec::Loader *loader = environment.loader.get()) {
    if (isFirst)
      fmt::print("{}\n", plan::printable(loader->explanation()));
    for (const std::string &remark : loader->remarks())
      if (isFirst)
        fmt::print("remark: {}\n", plan::printableLines(remark));
    if (loader->hasCheckpoint()) {
      options.firstStep = loader->progress().step;
      options.batchesConsumed = loader->batchesConsumed();
      options.isFreshStart = !loader->isWhole();
      options.restore = [loader, &executable, &report, isFirst] {
        if (isFirst)
          checkpoint::onUncheckedRecords([&report](const std::string &sentence) {
            report.clearLine();
            fmt::print(stderr, "shardc-run: warning: {}\n", plan::printable(sentence));
          });
        Status status = loader->restore(executable);
        checkpoint::onUncheckedRecords({});
        return status;
      };
      if (environment.saver)
        environment.saver->setBegin(loader->progress());
    }
  }
  for (const std::string &sentence : environment.sentences)
    if (isFirst)
      fmt::print("{}\n", sentence);
  if (exec::Saver *saver = environment.saver.get()) {
    environment.say = [&report, isFirst](const std::string &text) {
      if (!isFirst)
        return;
      report.clearLine();
      fmt::print("{}\n", text);
      std::fflush(stdout);
    };
    environment.fail = [&report, isFirst](const Status &status) {
      if (!isFirst)
        return; // all ranks have the same status
      report.clearLine();
      say(status, kFailureStatus);
    };
    saver->attach(executable);
    options.keeper = saver;
  }
  std::fflush(stdout);
}

void printMachine(exec::Executable &executable, const Environment &environment) {
  if (environment.entry.traits.isOnGpus) // others register nothing
    for (const std::string &channel : executable.unregisteredChannels())
      fmt::print("remark: channel '{}' is not registered with NCCL although 'ddp.nccl_ub' is on: "
                 "its sums are exchanged in the order of ranks (model.deterministic_mode)\n",
                 channel);
  double gathers = executable.measuredGatherGBs();
  fmt::print("{}{}", exec::linkText(executable.plan(), executable.device(0).links(), gathers),
             environment.session->meetingText());
  if (std::string warning = exec::linkWarning(executable.plan(), gathers); !warning.empty())
    fmt::print(stderr, "shardc-run: warning: {}\n", warning);
  fmt::print(
      "{}{}",
      exec::memoryTable(executable.role(), executable.workspaceBytes(0),
                        executable.landingBytes(0)),
      exec::deviceMemoryTable(executable.plan(), executable.role(), executable.memoryStages()));
  std::fflush(stdout);
}

exec::ExecutableOptions executableOptionsOf(const RunToolOptions &options, Crew &crew,
                                            const Environment &environment) {
  exec::ExecutableOptions out;
  if (environment.loader)
    out.countOffsets = environment.loader->progress().countOffsets;
  out.progress = true;
  out.making = &crew.making;
  out.faults = environment.faults.get();
  out.graphs = !options.noGraph;
  out.nodesAhead = environment.entry.traits.queuesNodes ? options.nodesAhead : 0;
  out.productTarget = {options.productMultiprocessors, options.productsBeside};
  out.poisonBetweenSegments = options.scheduleSeed.has_value();
  out.beforeCapture = environment.session->beforeCapture();
  return out;
}

exec::ReportOptions reportOptionsOf(const plan::Plan &plan, Crew &crew,
                                    exec::MetricsWriter &metrics) {
  exec::ReportOptions out;
  out.isTerminal = ::isatty(STDOUT_FILENO) == 1;
  out.isQuiet = !crew.isFirst();
  out.steps = &crew.steps;
  out.logInterval = std::max<int64_t>(plan.job.logger.logInterval, 1);
  out.tokensPerStep = plan.job.train.globalBatchSize * plan.job.model.seqLength;
  out.flopsPerToken = exec::modelFlopsPerToken(plan) / static_cast<double>(plan.worldSize());
  out.peakFlops = exec::peakFlops(plan);
  out.metrics = &metrics;
  return out;
}

/// Makes of this process' memory that of all ranks.
Status gatherMemory(const Crew &crew, std::optional<exec::MemoryChange> &memory) {
  if (!crew.member || !memory) // all ranks have run steps, or none
    return Status::ok();
  ASSIGN_OR_RETURN(memory, exec::gatherMemoryChange(*crew.member, *memory));
  return Status::ok();
}

int train(const plan::Plan &plan, const RunToolOptions &options, Crew &crew,
          Environment &environment) {
  SetUpWatch setUp(crew);
  auto executable =
      exec::Executable::create(plan, *environment.backend, environment.entry.findKernel,
                               executableOptionsOf(options, crew, environment));
  if (!executable.isOk())
    return crew.fail(executable.status(), executable.status().code() == StatusCode::InvalidInput
                                              ? kInputStatus
                                              : kFailureStatus);
  Watch watch(**executable, crew,
              [saver = environment.saver.get()] { return saver != nullptr && saver->isWriting(); });
  if (Status status = endSetUp(crew, watch, *environment.session); !status.isOk())
    return crew.fail(status, kFailureStatus);
  if (crew.member) // the others would wait in collectives for a rank that is gone
    crew.member->onAbort([backend = environment.backend.get()] { backend->abort(); });

  exec::Report report(reportOptionsOf(plan, crew, environment.metrics));

  exec::RunOptions runOptions;
  runOptions.check = options.check;
  connectCheckpoints(environment, **executable, report, runOptions, crew.isFirst());
  if (crew.isFirst())
    printMachine(**executable, environment);
  runOptions.stepsEnd = lastStep(plan, runOptions.firstStep);
  runOptions.stopRequest = &watchSignals(crew.member != nullptr);
  bool isTraced = false;
  if (!options.trace.empty() && crew.isFirst())
    runOptions.trace = [&](std::vector<trace::Span> spans, int steps) -> Status {
      isTraced = true;
      int rank = (*executable)->worldRank(0);
      report.clearLine();
      fmt::print("{}", trace::toText(trace::breakDown(spans, rank, steps, trace::tracedOps(plan))));
      return writeFileAtomic(options.trace, trace::chromeTrace(spans));
    };
  std::unique_ptr<exec::Dumper> dumper;
  if (!options.dumps.empty()) {
    auto made = makeDumper(**executable, options);
    if (!made.isOk())
      return crew.fail(made.status(), kInputStatus);
    dumper = std::move(*made);
    runOptions.opObserver = dumper.get();
    runOptions.wantsOps = [step = options.dumpStep](int64_t now) { return now == step; };
  }

  auto result = exec::runProgram(**executable, *environment.source, report, runOptions);
  if (environment.saver)
    environment.saver->abandon(); // after a run that ended well nothing is under way
  Status dumped = dumper ? dumper->finish() : Status::ok();
  if (!result.isOk()) {
    report.clearLine();
    return crew.fail(result.status(), kFailureStatus);
  }
  if (Status status = gatherMemory(crew, result->memory); !status.isOk())
    return crew.fail(status, kFailureStatus);
  report.end(*result);
  if (result->isStopped && !environment.saver && crew.isFirst())
    fmt::print("{}", kSavedNothing);
  if (runOptions.trace && !isTraced)
    fmt::print(
        stderr,
        "shardc-run: warning: the run ended before the last step that --trace takes; '{}' is "
        "not written\n",
        plan::printable(options.trace));
  if (!dumped.isOk())
    return crew.fail(dumped, kFailureStatus);
  // The messages about metrics and saves were printed when they failed.
  bool isSaved = !environment.saver || environment.saver->lastStatus().isOk();
  return report.metricsStatus().isOk() && isSaved ? 0 : kFailureStatus;
}

/// Runs the ranks of this process.
int runRanks(const plan::Plan &plan, const RunToolOptions &options, const BackendEntry &entry,
             Crew &crew) {
  Environment environment{.entry = entry, .session = entry.beginSession(plan, options)};
  if (!entry.traits.computes) {
    int status = rehearse(plan, options, entry, *environment.session, crew);
    if (crew.member)
      crew.member->leave(status);
    return status;
  }
  if (options.fault.kind != exec::FaultKind::Nothing)
    environment.faults = std::make_unique<exec::PlantedFault>(options.fault);
  auto findings = findingsOfAll(crew, prepare(plan, options, crew, environment));
  if (findings.isOk() && (findings->empty() || !crew.member)) // all that is wrong in one go
    prepareBackend(plan, crew, environment, *findings);
  if (!findings.isOk() || !findings->empty()) {
    std::string text = findings.isOk() ? "" : findings.status().message();
    for (size_t i = 0; findings.isOk() && i < findings->size(); ++i)
      text += (i > 0 ? "\nshardc-run: error: " : "") + (*findings)[i];
    return crew.fail(Status(findings.isOk() ? StatusCode::InvalidInput : StatusCode::Aborted, text),
                     kInputStatus);
  }
  int status = train(plan, options, crew, environment);
  if (crew.member)
    crew.member->leave(status);
  return status;
}

/// Only a plan can name a backend that this program does not have.
Status missingBackend(const plan::Plan &plan, const RunToolOptions &options) {
  return makeStatus(StatusCode::Unavailable,
                    "the plan needs backend {}, which this program was built without; {}, and "
                    "--simulate-ranks={} runs this plan here",
                    options.backend, kHostOffer, plan.worldSize());
}

int run(RunToolOptions options) {
  if (!options.refuse.empty())
    return refuseJob(options);
  const char *planted = std::getenv("SHARDC_FAULT");
  Result<exec::Fault> fault = exec::Fault::parse(planted ? planted : "");
  if (!fault.isOk())
    return say(fault.status(), kInputStatus);
  options.fault = *fault;
  uint64_t hash = 0;
  Result<plan::Plan> plan = loadPlan(options, hash);
  if (!plan.isOk()) {
    // A parse error says where it is in the form of a diagnostic; others are sentences.
    if (plan.status().code() != StatusCode::InvalidInput)
      return say(plan.status(), kInputStatus);
    fmt::print(stderr, "{}\n", plan.status().message());
    return kInputStatus;
  }
  if (Status status = plan::verified(*plan); !status.isOk()) {
    fmt::print(stderr, "{}\n", status.message());
    return kInputStatus;
  }
  std::string name = backendNameOf(*plan, options);
  const BackendEntry *backend = findBackend(name);
  if (Status status = setVariables(*plan, backend); !status.isOk())
    return say(status, kInputStatus);
  // Ranks that a launcher has started report this together, at the rendezvous.
  if (std::string problem = checkVariables(*plan, options);
      !problem.empty() && !isLaunched() && !options.explain)
    return say(Status(StatusCode::InvalidInput, problem), kInputStatus);
  options.backend = name;
  if (!backend)
    return say(missingBackend(*plan, options), kInputStatus);
  if (options.explain) {
    fmt::print("{}", exec::explain(*plan, backend->findKernel));
    return 0;
  }
  return runJob(*plan, hash, options,
                [&](Crew &crew) { return runRanks(*plan, options, *backend, crew); });
}

} // namespace
} // namespace shardc::tools

int main(int argc, char **argv) {
  int status = 0;
  auto options = shardc::tools::parseCommandLine(argc, argv, status);
  return options ? shardc::tools::run(*options) : status;
}
