// The requirements of a run besides its plans: data, checkpoints, files and the backend; and the
// errors that prevent it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/run/EventLog.h"
#include "runtime/run/JobData.h"
#include "runtime/run/Metrics.h"
#include "runtime/save/Loader.h"
#include "runtime/save/Saver.h"
#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/MemoryRestarts.h"
#include "runtime/tools/Options.h"
#include "runtime/tools/Samples.h"

namespace shardc::tools {

/// Everything that a run needs besides its plans.
struct Environment {
  const BackendEntry &entry;
  /// Collects the warnings of the backend and its kernels on this rank, until they are reported on
  /// all ranks.
  ReportList warnings = {};
  std::unique_ptr<BackendSession> session = nullptr; ///< outlives the backend
  std::unique_ptr<hal::Backend> backend;
  std::unique_ptr<exec::FaultHooks> faults; ///< faults that a test injects; null: none
  std::unique_ptr<run::JobSource> source;
  const plan::Plan *forward = nullptr; ///< plan of one sequence; null without samples
  std::unique_ptr<Samples> samples;    ///< null where no texts are asked for
  run::MetricsWriter metrics;
  run::EventLog events;
  size_t phase = 0;                                   ///< index of the plan whose steps come next
  std::unique_ptr<checkpoint::FileFaults> fileFaults; ///< faults that a test injects into saves
  /// Faults that a test injects into saves in memory.
  std::function<void(int64_t, std::span<uint8_t>)> imageFault;
  bool awaitsKept = false; ///< a test makes steps wait until state is kept in memory
  std::unique_ptr<save::MemorySaves> memory; ///< null if state is not kept in memory
  std::unique_ptr<MemoryRestart> fromMemory; ///< null unless a restart reads its state from memory
  std::unique_ptr<save::Saver> saver;        ///< null if the plan does not save
  std::vector<plan::Plan> continued;         ///< the loader's plans in a job that has restarted
  std::unique_ptr<save::Loader> loader;      ///< null if the run does not load
  /// Receives the reports of the saver and the loader, and keeps them until the run begins.
  ReportList kept;
  ReportSink emit = kept.sink();
};

/// Creates everything except the backend. Returns all errors that it finds on this rank. `plans`
/// are those of `all` for this number of ranks.
std::vector<Report> prepare(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                            const RunToolOptions &options, const ProcessContext &process,
                            Environment &environment);

/// Creates the backend. Must be called last, because all ranks have to take part.
void prepareBackend(std::span<const plan::Plan> plans, const ProcessContext &process,
                    Environment &environment, std::vector<Report> &findings);

/// Returns the findings of all ranks, each once.
Result<std::vector<Report>> findingsOfAll(const ProcessContext &process,
                                          std::vector<Report> findings);

/// The advice for a machine without the backend that a plan needs.
inline constexpr const char *kHostOffer =
    "'shardc run R.recipe --backend=host' compiles the recipe for this machine's processor";

/// Reports the warnings of all ranks once, with the ranks that have them. All ranks must call it.
Status reportWarnings(const ProcessContext &process, ReportList &warnings);

/// Prints the duration of each part of the start on this rank, if it is the first one and the
/// options request it.
void printTimings(const RunToolOptions &options, const ProcessContext &process,
                  const exec::Executable &executable);

} // namespace shardc::tools
