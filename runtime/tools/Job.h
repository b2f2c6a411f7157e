// Starts the processes of a run: one with all ranks, or one per rank, started here or by a
// launcher.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>

#include "runtime/launch/RendezvousClient.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Console.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// The part of this process in a run.
struct ProcessContext {
  Console console;
  /// The connection to ranks in other processes; null if this process has all ranks.
  launch::RendezvousClient *client = nullptr;
  /// The last completed step, for threads that watch the run; 0 before the first one.
  std::atomic<uint64_t> steps{0};
  /// ProgressWord of the channel that is being created before the first step, or 0.
  std::atomic<uint32_t> making{0};
  size_t firstPlan = 0; ///< index of the first plan of the file for this number of ranks
  /// Index of the plan that runs, or is being set up, among all plans of the file.
  std::atomic<uint32_t> phase{0};
  /// The supervisor's memory for this rank; empty if there is none.
  std::span<uint8_t> heldOwn, heldGuest;
  uint64_t planHash = 0;
  double meetingSeconds = 0; ///< until all ranks had met
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  /// Number of starts of the ranks before this one.
  int64_t attempt() const { return client ? client->attempt() : 0; }
  /// The step of the job's own save from which this start continues; -1: as its options say.
  int64_t savedStep() const { return client ? client->savedStep() : -1; }
  bool isFirst() const { return !client || client->rank() == 0; }
  /// Returns the file to which this process writes a trace; empty if it writes none. A process that
  /// has all ranks traces all of them.
  std::string traceFile(const RunToolOptions &options) const {
    return client ? traceFileOf(options, client->rank()) : options.trace;
  }
  int processesHere() const { return client ? client->localSize() : 1; }
  /// Reports an error, once for all ranks, and returns the exit status.
  int fail(const Status &status, int exitStatus);
  /// Like fail() above, for all errors that were found before the first step.
  int fail(const std::vector<Report> &errors, int exitStatus);
};

using RunWork = std::function<int(std::span<const plan::Plan> plans, ProcessContext &process)>;

/// Whether a launcher has started this process, together with the others of its job.
bool isLaunched();

/// Returns the time limit of the plan's collectives in seconds.
double timeoutSeconds(const plan::Plan &plan);

/// Determines how the run was started, starts the processes that it needs, and runs `work` in each
/// of those that hold ranks, with the plans for their number of ranks. `plans` are those for all
/// numbers, the largest first. Returns the exit status of this process. `planHash` must be the same
/// in all processes that have the same plans. The options must name a backend of this program.
int runJob(std::span<const plan::Plan> plans, uint64_t planHash, const RunToolOptions &options,
           const RunWork &work);

/// Tells the other ranks of a launched job why this one cannot run. Returns the exit status.
int refuseJob(const RunToolOptions &options);

} // namespace shardc::tools
