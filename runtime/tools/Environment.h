// What a run needs besides its plans: data, checkpoints, files, the backend; and all that keeps it
// from running.
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
  std::unique_ptr<exec::FaultHooks> faults; ///< what a test plants; null: nothing
  std::unique_ptr<run::JobSource> source;
  const plan::Plan *forward = nullptr; ///< of one row, for samples; null where the job has none
  std::unique_ptr<Samples> samples;    ///< null where no texts are asked for
  run::MetricsWriter metrics;
  run::EventLog events;
  size_t phase = 0; ///< of the plans the one whose steps come next
  std::unique_ptr<checkpoint::FileFaults> fileFaults;          ///< what a test plants in saves
  std::function<void(int64_t, std::span<uint8_t>)> imageFault; ///< and in saves in memory
  bool awaitsKept = false;                                     ///< a test's steps wait for these
  std::unique_ptr<save::MemorySaves> memory; ///< null where state is not kept in memory
  std::unique_ptr<MemoryRestart> fromMemory; ///< what a restart has read there, if it has
  std::unique_ptr<save::Saver> saver;        ///< null where the plan does not save
  std::vector<plan::Plan> continued;         ///< the loader's, of a job that has restarted
  std::unique_ptr<save::Loader> loader;      ///< null where it does not load
  /// Receives the reports of saver and loader, and keeps them until the run begins.
  ReportList kept;
  ReportSink emit = kept.sink();
};

/// Creates everything except the backend; returns all errors that it finds on this rank. `plans`
/// are those of `all` for this number of ranks.
std::vector<Report> prepare(std::span<const plan::Plan> all, std::span<const plan::Plan> plans,
                            const RunToolOptions &options, const ProcessContext &process,
                            Environment &environment);

/// Creates the backend, last, because all ranks have to take part.
void prepareBackend(std::span<const plan::Plan> plans, const ProcessContext &process,
                    Environment &environment, std::vector<Report> &findings);

/// What any rank found, each once.
Result<std::vector<Report>> findingsOfAll(const ProcessContext &process,
                                          std::vector<Report> findings);

/// The advice for a machine without the backend that a plan needs.
inline constexpr const char *kHostOffer =
    "'shardc run R.recipe --backend=host' compiles the recipe for this machine's processor";

/// Reports warnings of all ranks once, with the ranks that have them. All ranks call it together.
Status reportWarnings(const ProcessContext &process, ReportList &warnings);

/// Prints how long each part of the start took on this rank, if it is the first and the options ask
/// for it.
void printTimings(const RunToolOptions &options, const ProcessContext &process,
                  const exec::Executable &executable);

} // namespace shardc::tools
