// The parent of the processes that hold ranks: starts them, runs the rendezvous server if rank 0 is
// among them, forwards signals, and ensures that none of them outlives the job. It does none of the
// run's own work, so a rank that is stuck or stopped cannot block it.
#pragma once

#include <functional>

#include "runtime/launch/RendezvousClient.h"
#include "runtime/launch/RendezvousServer.h"
#include "runtime/launch/Secret.h"

namespace shardc::launch {

/// A restart, reported once all ranks of the previous attempt have ended.
struct Restart {
  Report cause;
  Attempt attempt;
  int64_t restartsMax = 0;
  double secondsLost =
      0; ///< since the job last was, as far as is known, at the step where it continues
};

/// Whether and how ranks start again after a fault.
struct RestartOptions {
  int64_t restartsMax = 0;
  /// Returns the step of the newest complete save that this job has made, or -1.
  std::function<int64_t()> newestSave;
  std::function<void(const Restart &)> note; ///< reports a restart
};

/// Memory of the supervisor for each rank that it starts. It outlives the processes of the rank.
struct HeldMemory {
  int64_t ownBytes = 0;   ///< bytes for the data that the rank itself keeps
  int64_t guestBytes = 0; ///< for another rank's data; 0 if all ranks start here
  int64_t bytes() const { return ownBytes + guestBytes; }
};

/// A change of the ranks with which an elastic job continues.
struct CrewChange {
  Crew before, now;       ///< places by rank; at first `before` has the largest size
  std::string why;        ///< which places are missing or have registered
  int64_t savedStep = -1; ///< step of the save from which it continues
  double secondsLost = 0; ///< like Restart::secondsLost, until the new ranks begin
};

struct SupervisorOptions : JobOptions {
  JobPosition position;   ///< position of this process; Plain: all ranks start here
  int64_t worldSize = 1;  ///< ranks of the plan; for an elastic job, of its largest size
  ElasticOptions elastic; ///< whether the job is elastic
  std::function<void(const CrewChange &)> noteCrew;
  int rendezvousPort = 0; ///< port on which rank 0 of a launched job listens
  /// The secret of a launched job. If all ranks start here, a random secret is drawn instead.
  Secret secret;
  RestartOptions restarts;
  /// Describes the state from which the run can continue, for messages: `a run can resume after
  /// step 4 from 'ckpt'`. Called after the ranks were killed. If it is empty, nothing was saved.
  std::function<std::string()> whatIsLeft;
  HeldMemory held;
  /// Returns the GPU of a rank, by its number on its node, for messages. If the function is empty,
  /// there are no GPUs.
  std::function<std::string(int64_t localRank)> gpuOf;
  /// Whether a signal arrived before the supervisor handled signals itself. Called once, after that
  /// moment; if the function is empty, none arrived.
  std::function<bool()> isAsked;
  /// Returns a text that distinguishes a rank in addition to its number, such as `, stage 2 of 4`;
  /// empty if there is none.
  std::function<std::string(int64_t rank, int64_t worldSize)> stageOf;

  /// Number of processes of the job on all machines: one for each rank or place.
  int64_t processes() const { return elastic.isElastic() ? elastic.places() : worldSize; }
};

/// Starts the processes and returns, when the last one has ended, the exit status of the job, or of
/// this rank if other supervisors start the job's other ranks. `work` runs in each process and
/// returns its exit status. Must be called while this process has one thread.
int supervise(const SupervisorOptions &options,
              const std::function<int(RendezvousClientOptions &)> &work);

} // namespace shardc::launch
