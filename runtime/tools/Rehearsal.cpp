// Runs without arithmetic.
#include "runtime/tools/Commands.h"

#include <cstdio>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/run/JobCheck.h"
#include "runtime/run/Preflight.h"
#include "runtime/run/RunLoop.h"
#include "runtime/tools/Environment.h"
#include "runtime/tools/Signals.h"

namespace shardc::tools {
namespace {

/// Leaves the ring of microbatches unchanged.
class NoData final : public run::BatchSource {
public:
  Status fill(run::FeedKind, int64_t, int64_t, int64_t, int64_t, const run::FeedEntry &) override {
    return Status::ok();
  }
};

/// Counts completed steps.
class StepCounter final : public run::RunObserver {
public:
  explicit StepCounter(std::atomic<uint64_t> &steps) : steps_(steps) {}
  void begin(int64_t, int64_t stepsTotal) override { total = stepsTotal; }
  void step(const StepState &) override { steps_.fetch_add(1, std::memory_order_relaxed); }
  void evaluated(const StepState &) override { ++evaluations; }

  int64_t total = 0, evaluations = 0;

private:
  std::atomic<uint64_t> &steps_;
};

/// Returns an error for each requested option that needs values.
std::vector<Report> needsOfValues(const RunToolOptions &options, const BackendEntry &entry) {
  std::vector<Report> findings;
  for (auto [isGiven, name] : {std::pair(!options.metrics.empty(), "--metrics"),
                               {!options.trace.empty(), "--trace"},
                               {!options.dumps.empty(), "--dump"},
                               {options.check, "--check"}})
    if (isGiven)
      findings.push_back(makeReport(report::NothingComputed, entry.name, name));
  return findings;
}

struct Counts {
  int64_t calls = 0, collectives = 0, copies = 0;
};

/// Counts the calls of the first rank's segments, in all variants.
Counts countCalls(const exec::Executable &executable) {
  Counts counts;
  executable.forEachBound([&](const exec::BoundSegment &bound, const plan::Segment &) {
    for (const exec::BoundOp &op : bound.ops) {
      counts.calls += op.kind == exec::BoundOp::Kernel;
      counts.collectives += op.kind == exec::BoundOp::Collective;
      counts.copies += op.kind == exec::BoundOp::Copy;
    }
  });
  return counts;
}

/// Runs the plan's steps after `firstStep`. The executable is destroyed when it returns.
Status runAll(const plan::Plan &plan, int64_t firstStep, const RunToolOptions &options,
              const BackendEntry &entry, hal::Backend &backend, ProcessContext &process) {
  exec::ExecutableOptions executableOptions;
  executableOptions.progress = true;
  executableOptions.making = &process.making;
  executableOptions.graphs = !options.noGraph;
  ASSIGN_OR_RETURN(auto executable,
                   exec::Executable::create(plan, backend, entry.findKernel, executableOptions));
  Counts counts = countCalls(*executable);
  if (process.isFirst())
    printOut("bound {} of {} ranks on backend {}: {} segments with {} calls, {} collectives and "
             "{} copies for each rank\n",
             executable->rankCount(), plan.worldSize(), entry.name,
             executable->role().segments.size(), counts.calls, counts.collectives, counts.copies);
  printTimings(options, process, *executable);
  NoData data;
  StepCounter counter(process.steps);
  run::RunOptions runOptions;
  runOptions.firstStep = firstStep;
  runOptions.isFreshStart = firstStep == 0;
  holdSignals(process.client != nullptr);
  runOptions.stopRequest = &stopRequests();
  ASSIGN_OR_RETURN(run::RunResult result, run::runProgram(*executable, data, counter, runOptions));
  if (process.isFirst())
    printOut("{} after {} of {} steps and {} evaluations; nothing was computed, so there are no "
             "losses\n",
             result.isStopped ? "stopped" : "done", process.steps.load(), counter.total,
             counter.evaluations);
  std::fflush(stdout);
  return Status::ok();
}

} // namespace

int rehearse(std::span<const plan::Plan> plans, const RunToolOptions &options,
             const BackendEntry &entry, BackendSession &session, ProcessContext &process) {
  std::vector<Report> findings;
  for (const plan::Plan &plan : plans)
    if (findings.empty())
      findings = run::preflight(plan, entry.name, entry.findKernel, {entry.traits.runsAnyPlan});
  for (Report &finding : needsOfValues(options, entry))
    findings.push_back(std::move(finding));
  if (!findings.empty())
    return process.fail(findings, kInputStatus);
  auto backend = session.makeBackend(process.client);
  if (!backend.isOk())
    return process.fail(backend.status(), kInputStatus);
  Status status;
  int64_t firstStep = 0;
  for (const plan::Plan &plan : plans)
    if (status.isOk() && stopRequests().load() == 0) {
      status = runAll(plan, firstStep, options, entry, **backend, process);
      firstStep = plan::lastStepOf(plan);
    }
  if (status.isOk()) // reports errors in the destruction of the executable
    status = (*backend)->synchronize();
  if (!status.isOk())
    return process.fail(status,
                        status.code() == StatusCode::InvalidInput ? kInputStatus : kFailureStatus);
  return 0;
}

} // namespace shardc::tools
