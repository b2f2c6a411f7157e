// Saves in memory for the program: how much memory supervisors hold for them, what a rank does with
// it, and what is reported of a restart that goes on from there.
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

/// The memory that a supervisor holds for each rank that it starts; none if the plans keep no state
/// in memory, or if ranks do not restart. PlanCannotRun if a plan copies state in pieces,
/// MemorySavesTooLarge if this machine has too little.
Result<launch::HeldMemory> heldMemoryOf(std::span<const plan::Plan> plans,
                                        const RunToolOptions &options, bool isLaunched);

/// State from which a restart goes on.
class MemoryRestart {
public:
  explicit MemoryRestart(save::MemoryState state) : state_(std::move(state)) {}

  /// A loader that restores the state into plans that continue the job. The plans must outlive it.
  /// Call once.
  Result<std::unique_ptr<save::Loader>> load(std::span<const plan::Plan> plans);
  /// Tells where the run goes on, once all of the state was read.
  Status noteRead(const ReportSink &emit, run::MetricsWriter &metrics) const;

private:
  save::MemoryState state_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Prepares saves in memory for this rank, if the plan requests them and a supervisor holds memory.
/// After a restart, finds the state that is newer than the newest checkpoint. `all` are the plans
/// of all numbers of ranks. All ranks call it together.
Status prepareMemory(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                     const ProcessContext &process, Environment &environment);

} // namespace shardc::tools
