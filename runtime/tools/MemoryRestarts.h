// Saves in memory, as shardc-run uses them: the memory that supervisors hold for them, their
// preparation in a rank, and the report of a restart from them.
#pragma once

#include <chrono>
#include <memory>
#include <span>

#include "runtime/launch/Supervisor.h"
#include "runtime/plan/Plan.h"
#include "runtime/run/Metrics.h"
#include "runtime/save/MemorySaves.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

struct Environment;

/// Returns the memory that a supervisor holds for each rank that it starts; none if the plans keep
/// no state in memory or if ranks do not restart. PlanCannotRun if a plan copies state in pieces,
/// MemorySavesTooLarge if this machine has too little memory.
Result<launch::HeldMemory> heldMemoryOf(std::span<const plan::Plan> plans,
                                        const RunToolOptions &options, bool isLaunched);

/// The state from which a restart continues.
class MemoryRestart {
public:
  explicit MemoryRestart(save::MemoryState state) : state_(std::move(state)) {}

  /// Returns a loader that restores the state into plans that continue the job. The plans must
  /// outlive it. Must be called at most once.
  Result<std::unique_ptr<save::Loader>> load(std::span<const plan::Plan> plans);
  /// Reports where the run continues, once all of the state was read.
  Status noteRead(const ReportSink &emit, run::MetricsWriter &metrics) const;

private:
  save::MemoryState state_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Prepares saves in memory for this rank, if the plan requests them and a supervisor holds memory.
/// After a restart, finds state that is newer than the newest checkpoint. `all` are the plans for
/// all numbers of ranks. All ranks must call it.
Status prepareMemory(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                     const ProcessContext &process, Environment &environment);

} // namespace shardc::tools
