// The number of processes of a run: one with all ranks, or one per rank, started here or elsewhere.
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

/// This process' part in a run.
struct ProcessContext {
  Console console;
  /// The ranks in other processes; null if this one has them all.
  launch::RendezvousClient *client = nullptr;
  /// The last completed step, for threads that watch the run; 0 before the first one.
  std::atomic<uint64_t> steps{0};
  /// ProgressWord of the channel that is being made before the first step, or 0.
  std::atomic<uint32_t> making{0};
  size_t firstPlan = 0; ///< of all plans of the file the first for this number of ranks
  /// Index of the plan that runs, or is set up, of all of the file.
  std::atomic<uint32_t> phase{0};
  /// The supervisor's memory for this rank; empty if it holds none.
  std::span<uint8_t> heldOwn, heldGuest;
  uint64_t planHash = 0;
  double meetingSeconds = 0; ///< until all ranks had met
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  /// Restarts of the ranks before this start of them.
  int64_t attempt() const { return client ? client->attempt() : 0; }
  /// The step of the job's own save from which this start continues; -1: its options say.
  int64_t savedStep() const { return client ? client->savedStep() : -1; }
  bool isFirst() const { return !client || client->rank() == 0; }
  /// The file that this process writes a trace to; empty if it writes none. A process that has all
  /// ranks traces all of them.
  std::string traceFile(const RunToolOptions &options) const {
    return client ? traceFileOf(options, client->rank()) : options.trace;
  }
  int processesHere() const { return client ? client->localSize() : 1; }
  /// Tells an error, once for all ranks, and gives the exit status.
  int fail(const Status &status, int exitStatus);
  /// The same for all errors that were found before the first step.
  int fail(const std::vector<Report> &errors, int exitStatus);
};

using RunWork = std::function<int(std::span<const plan::Plan> plans, ProcessContext &process)>;

/// True if a launcher has started this process, together with the others of its job.
bool isLaunched();

/// How long a collective may take, by the plan.
double timeoutSeconds(const plan::Plan &plan);

/// Finds out how the run was started, starts the processes that it needs, and runs `work` in each
/// of those that hold ranks, with the plans for their number. `plans` are those of all numbers, the
/// largest first. Returns the exit status of this process. `planHash` is the same in all
/// processes that have the same plans. The options name a backend of this program.
int runJob(std::span<const plan::Plan> plans, uint64_t planHash, const RunToolOptions &options,
           const RunWork &work);

/// Tells the other ranks of a launched job why this one cannot run; the exit status.
int refuseJob(const RunToolOptions &options);

} // namespace shardc::tools
