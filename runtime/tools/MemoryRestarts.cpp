#include "runtime/tools/MemoryRestarts.h"

#include <cstdio>

#include "runtime/base/Reports.h"
#include "runtime/launch/Machine.h"
#include "runtime/plan/Summary.h"
#include "runtime/tools/Environment.h"
#include "runtime/tools/InjectedSaveFault.h"

namespace shardc::tools {
namespace {

/// Returns the system's available memory in bytes; nothing if it is unknown.
std::optional<int64_t> memoryAvailable() {
  std::optional<int64_t> bytes;
  std::FILE *file = std::fopen("/proc/meminfo", "re");
  char line[256];
  long kib = 0;
  while (file && !bytes && std::fgets(line, sizeof line, file))
    if (std::sscanf(line, "MemAvailable: %ld kB", &kib) == 1)
      bytes = int64_t{kib} << 10;
  if (file)
    std::fclose(file);
  return bytes;
}

bool keepsInMemory(const plan::Plan &plan) {
  return plan.job.checkpoint.inMemoryInterval > 0 && !plan.job.checkpoint.save.empty();
}

} // namespace

Result<launch::HeldMemory> heldMemoryOf(std::span<const plan::Plan> plans,
                                        const RunToolOptions &options, bool isLaunched) {
  launch::HeldMemory held;
  if (options.restarts == 0 || !keepsInMemory(plans.front()))
    return held;
  ASSIGN_OR_RETURN(int64_t image, save::imageBytesMax(plans));
  held.ownBytes = save::ImageSlots::bytesFor(image);
  held.guestBytes = isLaunched ? held.ownBytes : 0;
  int64_t ranks = isLaunched ? 1 : plans.front().worldSize() + options.spares;
  int64_t beside = plans.front().job.checkpoint.asyncSave ? image : 0; // SaveThread's copy
  int64_t needed = (held.bytes() + beside) * ranks;
  if (std::optional<int64_t> there = memoryAvailable(); there && needed > *there)
    return makeStatus(report::MemorySavesTooLarge, plan::formatBytes(needed), ranks,
                      plan::formatBytes(*there));
  return held;
}

Result<std::unique_ptr<save::Loader>> MemoryRestart::load(std::span<const plan::Plan> plans) {
  return save::Loader::ofSource(plans, state_.phase, state_.progress, std::move(state_.source));
}

Status MemoryRestart::noteRead(const ReportSink &emit, run::MetricsWriter &metrics) const {
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
  emit(makeReport(report::RestoredFromMemory, state_.progress.step, state_.whose,
                  state_.secondsLost, took.count()));
  return metrics.restored(state_.progress.step, state_.secondsLost);
}

Status prepareMemory(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                     const ProcessContext &process, Environment &environment) {
  const plan::Plan &plan = plans.front();
  if (!keepsInMemory(plan) || !environment.saver)
    return Status::ok();
  if (!process.client || process.heldOwn.empty()) {
    environment.emit(makeReport(report::MemorySavesUnused));
    return Status::ok();
  }
  save::MemoryOptions options;
  options.own = process.heldOwn;
  options.guest = process.heldGuest;
  options.planHash = process.planHash;
  options.plans = all;
  options.machine = launch::machineId();
  options.timeoutSeconds = timeoutSeconds(plan);
  options.emit = [&environment](const Report &report) { environment.emit(report); };
  options.imageFault = std::move(environment.imageFault);
  options.areAwaited = environment.awaitsKept;
  ASSIGN_OR_RETURN(environment.memory,
                   save::MemorySaves::create(plans, *process.client, std::move(options)));
  if (process.attempt() == 0)
    return Status::ok();
  ASSIGN_OR_RETURN(std::optional<save::MemoryState> state,
                   environment.memory->restore(process.savedStep()));
  if (state)
    environment.fromMemory = std::make_unique<MemoryRestart>(std::move(*state));
  return Status::ok();
}

} // namespace shardc::tools
