// The parent of the processes that hold ranks: starts them, runs the rendezvous server if rank 0 is
// among them, forwards signals, and ensures that none of them outlives the job. It does no work of
// the run itself, so a rank that is stuck or stopped cannot block it.
#pragma once

#include <atomic>
#include <functional>
#include <span>

#include "runtime/launch/JobPosition.h"
#include "runtime/launch/RendezvousServer.h"
#include "runtime/launch/Secret.h"

namespace shardc::launch {

/// A restart, once all ranks of the attempt before it have ended.
struct Restart {
  Report cause;
  Attempt attempt;
  int64_t restartsMax = 0;
  double secondsLost =
      0; ///< since the job was last known to be no further than where it begins again
};

/// Whether and how ranks start again after a fault.
struct RestartOptions {
  int64_t restartsMax = 0;
  /// The step of the newest complete save that this job has made, or -1.
  std::function<int64_t()> newestSave;
  std::function<void(const Restart &)> note; ///< reports a restart
};

/// Memory of the supervisor for each rank that it starts, which outlives the rank's processes.
struct HeldMemory {
  int64_t ownBytes = 0;   ///< for what the rank itself keeps
  int64_t guestBytes = 0; ///< for another rank's; none where all ranks are started here
  int64_t bytes() const { return ownBytes + guestBytes; }
};

/// An elastic job goes on as other ranks than before.
struct CrewChange {
  Crew before, now;       ///< places by rank; `before` is all of the largest size at first
  std::string why;        ///< which places are missing or have come
  int64_t savedStep = -1; ///< where it goes on
  double secondsLost = 0; ///< as of a restart, until the new ranks begin
};

struct SupervisorOptions {
  JobPosition position;   ///< of this process, or Plain: then all ranks are started here
  int64_t worldSize = 1;  ///< of the plan; of an elastic job the largest
  ElasticOptions elastic; ///< whether the job is elastic
  std::function<void(const CrewChange &)> noteCrew;
  int rendezvousPort = 0; ///< where rank 0 of a launched job listens
  uint64_t planHash = 0;
  /// The secret of a launched job. If all ranks are started here, a random one is drawn.
  Secret secret;
  std::optional<Report> problem; ///< why this rank cannot take part
  ReportSink emit;               ///< takes the one failure, and warnings
  RestartOptions restarts;
  /// The state from which the run can continue, for messages; asked once the ranks are killed: `a
  /// run can resume after step 4 from 'ckpt'`. Empty: nothing was saved.
  std::function<std::string()> whatIsLeft;
  HeldMemory held;
  /// The GPU of a rank, by its number on its node, for people; empty function: none.
  std::function<std::string(int64_t localRank)> gpuOf;
  /// Reports whether a signal arrived before the supervisor took signals itself. It is asked once,
  /// after that; empty means no.
  std::function<bool()> isAsked;
  double timeoutSeconds = 600;
  std::function<std::string(std::span<const RankProgress>, int silent)> explainStall;
  std::function<std::string(const RankProgress &)> describe;
  /// Notes a rank that is late step after step; empty: nowhere.
  std::function<void(const LateRank &late, int64_t step, const Hello &hello)> noteLate;
  /// A text that distinguishes a rank in addition to its number, such as `, stage 2 of 4`; empty if
  /// there is none.
  std::function<std::string(int64_t rank, int64_t worldSize)> stageOf;

  /// Number of processes of the job on all machines: one for each rank or place.
  int64_t processes() const { return elastic.isElastic() ? elastic.places() : worldSize; }
};

/// The settings with which a started process finds the others.
struct WorkerOptions {
  int64_t rank = 0; ///< or the place of an elastic job
  bool isElastic = false;
  int64_t localRank = 0; ///< the launcher's, or the rank where all are started here
  std::string address;
  int port = 0;
  Secret secret;
  std::string job;
  double joinSeconds = 600;
  double timeoutSeconds = 600;
  std::optional<Report> problem;
  double connectSeconds = 0;              ///< until rank 0 answers; 0: joinSeconds
  bool startsAgain = false;               ///< after a fault, by the supervisor
  std::atomic<uint32_t> *heard = nullptr; ///< bits of Heard, for the supervisor
  std::string gpu;
  std::span<uint8_t> heldOwn, heldGuest; ///< the supervisor's memory for this rank
  std::string relayName;                 ///< of this machine's relay; empty: there is none
  bool hasWitness = false; ///< a process that says if the one that started this one is killed
};

/// Starts the processes and returns when the last has ended, with the exit status of the job (of
/// this rank, where the job's other ranks have other parents). `work` runs in each of them, whose
/// exit status is what it returns. Call it while this process has one thread.
int supervise(const SupervisorOptions &options,
              const std::function<int(const WorkerOptions &)> &work);

} // namespace shardc::launch
