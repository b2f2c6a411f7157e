// shardc-run: reads a placed plan, verifies it, checks the environment, and trains.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Explain.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/run/InjectedFault.h"
#include "runtime/run/JobCheck.h"
#include "runtime/run/Preflight.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Commands.h"
#include "runtime/tools/Elastic.h"
#include "runtime/tools/InjectedSaveFault.h"
#include "runtime/tools/Restarts.h"
#include "runtime/tools/Signals.h"
#include "runtime/tools/Variables.h"
#include "runtime/verify/Verify.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc::tools {
namespace {

/// FNV-1a: the hashes of equal texts are equal on all machines.
uint64_t hashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text)
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

/// The contents of a plan file: the job's plans for all of its sizes, and the plan that continues
/// texts.
struct LoadedPlans {
  std::vector<plan::Plan> plans;
  std::optional<plan::Plan> forward; ///< logical plan of one sequence
};

/// The plans, verified.
Result<LoadedPlans> loadPlans(const RunToolOptions &options, uint64_t &hash) {
  constexpr uint64_t kBytesMax = plan::limits::kTextBytesMax;
  ASSIGN_OR_RETURN(std::string text, options.planFd >= 0 ? readDescriptor(options.planFd, kBytesMax)
                                                         : readFile(options.planPath, kBytesMax));
  hash = hashOf(text);
  LoadedPlans loaded;
  std::vector<plan::Plan> &plans = loaded.plans;
  ASSIGN_OR_RETURN(plans, plan::parseJob(text, options.planFd >= 0 ? "<plan>" : options.planPath));
  for (const plan::Plan &plan : plans) {
    RETURN_IF_ERROR(plan::verified(plan));
    RETURN_IF_ERROR(plan::spec::proved(plan));
  }
  if (plans.size() > 1 && plans.back().level == plan::Level::Logical) {
    loaded.forward = std::move(plans.back());
    plans.pop_back();
  }
  RETURN_IF_ERROR(checkSizes(plans, options));
  for (std::span<const plan::Plan> size : plansBySize(plans))
    RETURN_IF_ERROR(plan::checkPhases(size));
  return loaded;
}

/// Returns the reasons why the job could not continue with other numbers of ranks. Called before
/// the first step.
std::vector<Report> findElastic(std::span<const plan::Plan> all, std::span<const plan::Plan> own,
                                const RunToolOptions &options, const BackendEntry &entry) {
  std::vector<Report> findings;
  for (const plan::Plan &plan : all)
    if (plan.worldSize() != own.front().worldSize())
      for (const std::vector<Report> &found :
           {run::preflight(plan, options.backend, entry.findKernel, {}), run::checkJob(plan)})
        for (const Report &report : found)
          if (std::ranges::find(findings, report) == findings.end())
            findings.push_back(report);
  return findings;
}

/// Runs the ranks of this process. `all` are the plans of all sizes that the job may have,
/// `forward` the one that continues texts, or null.
int runRanks(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
             const plan::Plan *forward, const RunToolOptions &options, const BackendEntry &entry,
             ProcessContext &process) {
  Environment environment{.entry = entry};
  environment.forward = forward;
  environment.session = entry.beginSession(plans.back(), options, environment.warnings.sink());
  if (!entry.traits.computes) {
    int status = rehearse(plans, options, entry, *environment.session, process);
    if (Status reported =
            status == 0 ? reportWarnings(process, environment.warnings) : Status::ok();
        !reported.isOk())
      status = process.fail(reported, kFailureStatus);
    if (process.client)
      process.client->leave(status);
    return status;
  }
  if (options.fault.kind != run::FaultKind::Nothing &&
      (process.attempt() == 0 || options.fault.strikesAgain)) {
    bool mayGrow = plans.front().worldSize() < all.front().worldSize();
    environment.faults = std::make_unique<run::InjectedFault>(
        options.fault, mayGrow ? &process.client->growsTo() : nullptr);
    environment.fileFaults = injectIntoSaves(options.fault, process);
    environment.imageFault = injectIntoImages(options.fault, process);
    environment.awaitsKept = options.fault.awaitsKept;
  }
  std::vector<Report> own = prepare(all, plans, options, process, environment);
  if (process.attempt() == 0)
    std::ranges::move(findElastic(all, plans, options, entry), std::back_inserter(own));
  auto findings = findingsOfAll(process, std::move(own));
  if (findings.isOk() && (findings->empty() || !process.client)) // report all errors together
    prepareBackend(plans, process, environment, *findings);
  if (!findings.isOk())
    return process.fail(findings.status(), kInputStatus);
  if (!findings->empty())
    return process.fail(*findings, kInputStatus);
  int status = train(plans, options, process, environment);
  if (process.client)
    process.client->leave(status);
  return status;
}

/// Only a plan can name a backend that this program was built without.
Status missingBackend(const plan::Plan &plan, const RunToolOptions &options) {
  return makeStatus(report::BackendNotBuilt, options.backend, kHostOffer, plan.worldSize());
}

/// Reads and verifies the plans, sets environment variables, and starts the processes of the run.
/// Variables must be set before any process starts, since CUDA and NCCL read them when they are
/// initialised.
int run(RunToolOptions options) {
  if (!options.refuse.empty())
    return refuseJob(options);
  if (options.measure || options.doctor)
    return measureMachine(std::move(options));
  if (!options.continueWith.empty())
    return continueText(options);
  auto refuse = [&options](const Status &status) {
    options.console.emit(status.report());
    return kInputStatus;
  };
  const char *injected = std::getenv("SHARDC_FAULT");
  Result<run::Fault> fault = run::Fault::parse(injected ? injected : "");
  if (!fault.isOk())
    return refuse(fault.status());
  options.fault = *fault;
  uint64_t hash = 0;
  auto begin = std::chrono::steady_clock::now();
  Result<LoadedPlans> loaded = loadPlans(options, hash);
  options.planSeconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!loaded.isOk())
    return refuse(loaded.status());
  const std::vector<plan::Plan> &plans = loaded->plans;
  const plan::Plan *forward = loaded->forward ? &*loaded->forward : nullptr;
  const plan::Plan *plan =
      &plansBySize(plans).front().back(); // any plan: the options used here are equal
  if (plan->job.train.exitSignal != plan::Job::ExitSignal::Sigterm)
    watchSignal(plan->job.train.exitSignal);
  std::string name = backendNameOf(*plan, options);
  const BackendEntry *backend = findBackend(name);
  if (Status status = setVariables(*plan, backend, options); !status.isOk())
    return refuse(status);
  // Ranks started by a launcher report this together, at the rendezvous.
  if (Status status = checkVariables(*plan, options);
      !status.isOk() && !isLaunched() && !options.explain)
    return refuse(status);
  options.backend = name;
  if (!backend)
    return refuse(missingBackend(*plan, options));
  if (options.explain) {
    printOut("{}", exec::explain(*plan, backend->findKernel));
    return finishOutput("shardc-run", 0);
  }
  return runJob(plans, hash, options,
                [&](std::span<const plan::Plan> own, ProcessContext &process) {
                  return runRanks(plans, own, forward, options, *backend, process);
                });
}

} // namespace
} // namespace shardc::tools

int main(int argc, char **argv) {
  shardc::prepareOutput();
  // Ranks started by a launcher must end after the same step, so signals only request the end.
  if (shardc::tools::isLaunched())
    shardc::tools::holdSignals(/*isQuiet=*/true);
  shardc::tools::watchSignals();
  int status = 0;
  auto options = shardc::tools::parseCommandLine(argc, argv, status);
  return options ? shardc::tools::run(*options) : shardc::finishOutput("shardc-run", status);
}
