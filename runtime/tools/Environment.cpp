#include "runtime/tools/Environment.h"

#include <algorithm>

#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/launch/RankReports.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/run/JobCheck.h"
#include "runtime/run/ModelFlops.h"
#include "runtime/run/Preflight.h"
#include "runtime/tools/Restarts.h"
#include "runtime/tools/Variables.h"

namespace shardc::tools {
namespace {

/// Returns the reports of `find` for all plans, without duplicates.
template <typename Find>
std::vector<Report> ofAll(std::span<const plan::Plan> plans, const Find &find) {
  std::vector<Report> findings;
  for (const plan::Plan &plan : plans)
    for (Report &report : find(plan))
      if (std::ranges::find(findings, report) == findings.end())
        findings.push_back(std::move(report));
  return findings;
}

/// Returns the files of a Hugging Face model that the run's saves include: those of the checkpoint
/// from which it starts. If its state comes from memory, those of its own saves, or of the
/// checkpoint from which its job started.
Result<std::vector<checkpoint::HfModelFile>>
modelFilesOf(const plan::Plan &plan, const save::Loader &loader, bool isFromMemory) {
  if (!isFromMemory)
    return loader.modelFiles();
  std::vector<checkpoint::HfModelFile> files;
  const plan::Job::Checkpoint &options = plan.job.checkpoint;
  for (const std::string &folder : {options.save, options.load, options.pretrainedCheckpoint}) {
    if (!files.empty() || folder.empty())
      continue;
    Result<std::string> newest = checkpoint::findCheckpoint(folder);
    if (!newest.isOk())
      continue;
    Result<checkpoint::CheckpointReader> reader = checkpoint::CheckpointReader::open(*newest);
    if (!reader.isOk())
      continue; // it has no complete save yet, so the state does not come from it
    ASSIGN_OR_RETURN(files, checkpoint::hfFilesOf(*reader));
  }
  return files;
}

/// Creates the saver and the loader. The saver comes first: it restores files that an interrupted
/// save has moved.
void prepareCheckpoints(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                        const ProcessContext &process, Environment &environment,
                        std::vector<Report> &findings) {
  const plan::Plan &plan = plans.front();
  if (Status status = save::checkCheckpointOptions(plan); !status.isOk())
    return findings.push_back(status.report());
  ReportSink emit = [&environment](const Report &report) { environment.emit(report); };
  auto saver = plan.job.validation.skipTrain // there is nothing to save
                   ? Result<std::unique_ptr<save::Saver>>(nullptr)
                   : save::Saver::create(plan, emit, process.client,
                                         {.faults = environment.fileFaults.get()});
  if (saver.isOk())
    environment.saver = std::move(*saver);
  else
    findings.push_back(saver.status().report());
  if (Status status = prepareMemory(all, plans, process, environment); !status.isOk())
    return findings.push_back(status.report());
  if (environment.saver)
    environment.saver->setMemory(environment.memory.get());
  if (int64_t step = process.savedStep(); step >= 0 || environment.fromMemory)
    for (const plan::Plan &each : plans)
      environment.continued.push_back(continuedPlan(each, step));
  std::span<const plan::Plan> loaded =
      environment.continued.empty() ? plans : std::span<const plan::Plan>(environment.continued);
  auto loader = environment.fromMemory ? environment.fromMemory->load(loaded)
                                       : save::Loader::open(loaded, emit);
  if (loader.isOk())
    environment.loader = std::move(*loader);
  else
    return findings.push_back(loader.status().report());
  const save::Loader *from = environment.loader.get();
  environment.phase = from ? static_cast<size_t>(&from->plan() - loaded.data()) : 0;
  if (!environment.saver)
    return;
  bool isOwn = environment.fromMemory != nullptr; // a first start has checked the folder
  if (environment.phase > 0)
    if (Status status = environment.saver->turnTo(plans[environment.phase], from->progress());
        !status.isOk())
      findings.push_back(status.report());
  if (from) {
    auto files = modelFilesOf(plan, *from, environment.fromMemory != nullptr);
    if (files.isOk())
      environment.saver->setModelFiles(std::move(*files));
    else
      findings.push_back(files.status().report());
  }
  if (from && from->base() && process.isFirst()) {
    if (auto record = from->base()->record(); record.isOk())
      environment.saver->setBaseRecord(std::move(*record));
    else
      findings.push_back(record.status().report());
  }
  std::string continued = from ? from->continuedFolder() : "";
  int64_t step = continued.empty() ? 0 : from->progress().step;
  if (Status status = environment.saver->checkOverwrites(step, continued); !isOwn && !status.isOk())
    findings.push_back(status.report());
}

/// Checks the packs. Unless the run has begun or accepts any reference model, also checks that
/// their log-probabilities are those of the weights with which it begins.
Status checkPacksOf(const plan::Plan &plan, const RunToolOptions &options,
                    const save::Loader *loader) {
  const bool hasBegun = loader && loader->hasCheckpoint() && loader->progress().step > 0;
  if (options.anyReference || hasBegun)
    return run::checkPacks(plan, nullptr);
  std::map<std::string, std::string> weights;
  if (loader && plan.job.preference.loss) {
    ASSIGN_OR_RETURN(weights, loader->fingerprints());
  }
  return run::checkPacks(plan, &weights);
}

run::EventOptions eventOptionsOf(const plan::Plan &plan, const save::Loader *loader) {
  const auto &logger = plan.job.logger;
  run::EventOptions out;
  out.interval = logger.tensorboardLogInterval;
  out.logInterval = logger.logInterval;
  out.windowSteps = logger.throughputWindowSize;
  out.batchSize = plan::batchSizesOf(plan.job, /*isEval=*/false).global;
  out.sequenceLength = plan.job.model.seqLength;
  out.worldSize = plan.worldSize();
  out.flopsPerToken = run::modelFlopsPerToken(plan) / static_cast<double>(plan.worldSize());
  if (loader && loader->hasCheckpoint()) {
    out.stepsBefore = loader->progress().step;
    out.samplesBefore = loader->progress().consumedTrainSamples;
    out.skippedSamples = loader->progress().skippedTrainSamples;
  }
  out.lossScale = logger.logLossScaleToTensorboard;
  out.perplexity = logger.logValidationPplToTensorboard;
  out.ranks = logger.logWorldSizeToTensorboard;
  out.times = logger.logTimersToTensorboard;
  out.decoupledLr = plan.job.optimizer.decoupledLr >= 0;
  out.throughput = logger.logThroughputToTensorboard;
  return out;
}

} // namespace

std::vector<Report> prepare(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                            const RunToolOptions &options, const ProcessContext &process,
                            Environment &environment) {
  const plan::Plan &plan = plans.front();
  std::vector<Report> findings = ofAll(plans, [&](const plan::Plan &each) {
    return run::preflight(each, options.backend, environment.entry.findKernel,
                          {options.simulateRanks > 0});
  });
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
  std::vector<Report> unfit = ofAll(plans, run::checkJob), ofCheckpoints;
  prepareCheckpoints(all, plans, process, environment, ofCheckpoints);
  if (!unfit.empty())
    findings.insert(findings.end(), unfit.begin(), unfit.end());
  else if (auto source = run::openJobData(plans[environment.phase]); need(source.status()))
    environment.source = std::move(*source);
  if (environment.source) {
    auto samples =
        Samples::create(plan, environment.forward, *environment.source, process.isFirst());
    if (need(samples.status()))
      environment.samples = std::move(*samples);
  }
  // A restarted run has read the packs before.
  if (environment.source && process.isFirst() && process.attempt() == 0)
    need(checkPacksOf(plan, options, environment.loader.get()));
  findings.insert(findings.end(), ofCheckpoints.begin(), ofCheckpoints.end());
  if (!options.metrics.empty() && process.isFirst())
    need(environment.metrics.open(options.metrics));
  if (std::string file = process.traceFile(options); !file.empty())
    need(checkWritable(file).as(report::TraceRefused.info()));
  if (!options.trace.empty() && options.traceRanks.back() >= plan.worldSize())
    findings.push_back(
        makeReport(report::TraceOfNoRank, options.traceRanks.back(), plan.worldSize() - 1));
  if (const std::string &folder = plan.job.logger.tensorboardDir;
      !folder.empty() && process.isFirst() && findings.empty())
    need(environment.events.open(
        folder, eventOptionsOf(plans[environment.phase], environment.loader.get())));
  return findings;
}

void prepareBackend(std::span<const plan::Plan> plans, const ProcessContext &process,
                    Environment &environment, std::vector<Report> &findings) {
  auto backend = environment.session->makeBackend(process.client);
  if (!backend.isOk()) {
    Report finding = backend.status().report();
    if (backend.status().code() == StatusCode::Unavailable)
      finding.text += std::string("; ") + kHostOffer;
    return findings.push_back(std::move(finding));
  }
  environment.backend = std::move(*backend);
  for (const plan::Plan &plan : plans) {
    Status memory =
        run::checkMemory(plan, *environment.backend, static_cast<int64_t>(process.processesHere()));
    if (!memory.isOk())
      return findings.push_back(memory.report());
  }
}

namespace {

/// Whether a rank only repeats a report of another rank that reports it itself (hal::Peers::agree).
bool isHearsay(const Report &report, const std::vector<std::vector<Report>> &byRank) {
  for (size_t rank = 0; rank < byRank.size(); ++rank)
    for (const Report &own : byRank[rank])
      if (report.id == own.id && report.text == fmt::format("rank {}: {}", rank, own.text))
        return true;
  return false;
}

} // namespace

Result<std::vector<Report>> findingsOfAll(const ProcessContext &process,
                                          std::vector<Report> findings) {
  if (!process.client)
    return findings;
  ASSIGN_OR_RETURN(auto byRank, launch::gatherReports(
                                    *process.client, "what keeps the plan from running", findings));
  std::vector<Report> merged;
  for (const std::vector<Report> &reports : byRank)
    for (const Report &report : reports)
      if (std::ranges::find(merged, report) == merged.end() && !isHearsay(report, byRank))
        merged.push_back(report);
  return merged;
}

Status reportWarnings(const ProcessContext &process, ReportList &warnings) {
  std::vector<std::vector<Report>> byRank = {warnings.take()};
  if (process.client) {
    ASSIGN_OR_RETURN(byRank, launch::gatherReports(*process.client, "warnings", byRank.front()));
  }
  if (process.isFirst())
    for (const Report &report : launch::mergeReports(byRank))
      process.console.emit(report);
  return Status::ok();
}

void printTimings(const RunToolOptions &options, const ProcessContext &process,
                  const exec::Executable &executable) {
  if (!options.timings || !process.isFirst())
    return;
  const exec::SetUpSeconds &seconds = executable.setUpSeconds();
  printOut("start: plan {:.3f} s, meeting {:.3f} s, memory {:.3f} s, communicators {:.3f} s, "
           "kernels {:.3f} s, graphs {:.3f} s\n",
           options.planSeconds, process.meetingSeconds, seconds.memory, seconds.communicators,
           seconds.kernels, seconds.graphs);
}

} // namespace shardc::tools
