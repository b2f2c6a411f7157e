// Decisions of supervisors about restarting the ranks of a job after a fault. Rank 0's supervisor
// leads and the others follow. Neither state machine uses sockets, clocks or processes: events go
// in, with the time in seconds, and actions come out. The supervisor executes the actions, and
// launch.simulation drives both machines with seeds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardc::launch {

/// What ended all ranks of an attempt.
struct FaultSeen {
  std::string id;       ///< of its report
  int64_t step = 0;     ///< the last step that some rank had ended
  bool isFinal = false; ///< no restart mends it: wrong input, or a request to end
  /// The part of the job that caused the fault is left out from here on, so the fault may not come
  /// back (Elastic.h).
  bool isMended = false;
  bool isSame(const FaultSeen &other) const { return id == other.id && step == other.step; }
};

/// An attempt of all ranks to run the job. The first is number 0.
struct Attempt {
  int64_t number = 0;
  int64_t restarts = 0;   ///< faults before it; other attempts begin because the job grows
  int64_t savedStep = -1; ///< the save to load; -1: begin as the run's options say
  double pause = 0;       ///< seconds until its ranks may start
};

/// Rank 0's supervisor.
class RestartLeader {
public:
  /// 0: no fault is followed by a restart.
  explicit RestartLeader(int64_t restartsMax) : restartsMax_(restartsMax) {}

  /// Ends: ranks of an attempt that failed are ending. Pauses: all have ended, the next may not
  /// start yet.
  enum class State : uint8_t { Runs, Ends, Pauses, Over };
  enum class Verdict : uint8_t { Again, NoRestarts, Final, Asked, UsedUp, CameBack };

  /// A fault, the first of an attempt. Unless the verdict is Again, the job is over.
  Verdict faulted(const FaultSeen &fault);
  /// True if all ranks have saved and wait, to continue with other rank numbers. False if nothing
  /// begins any more.
  bool resizes();
  /// All processes that can still write a save have ended. `newestSave` is the step of the newest
  /// complete save of this run, or -1. The attempt that starts after its pause.
  Attempt ended(double now, int64_t newestSave);
  /// True once, when the pause is over: ranks start now.
  bool startsNow(double now);
  /// Somebody has asked the job to end: no attempt begins from here on.
  void asked() { isAsked_ = true; }

  State state() const { return state_; }
  /// The attempt that ends, or has ended, does so without a fault.
  bool isInOrder() const { return isInOrder_; }
  bool isBetweenAttempts() const { return state_ == State::Ends || state_ == State::Pauses; }
  int64_t restartsMax() const { return restartsMax_; }
  const Attempt &attempt() const { return attempt_; }

private:
  int64_t restartsMax_;
  State state_ = State::Runs;
  bool isAsked_ = false, isInOrder_ = false;
  Attempt attempt_;
  std::optional<FaultSeen> last_; ///< the fault before the attempt
  int64_t restarts_ = 0;
  int64_t inRow_ = 0; ///< restarts since a save was made
  double startsAt_ = 0;
};

/// The supervisor of a rank on another machine, or of another process of the same launcher. It
/// knows no plan of the leader: its rank asks the leader, who lets it in or says that the job is
/// over.
class RestartFollower {
public:
  explicit RestartFollower(bool mayRestart) : mayRestart_(mayRestart) {}

  /// How a rank's process has ended.
  struct RankEnd {
    bool wasToldOver = false; ///< the leader said that the job is over, or it left on its own
    bool hasHeard = false;    ///< anything from the leader
  };
  /// True if a process for the rank starts again; the old one is gone.
  bool rankEnded(const RankEnd &end, double now);
  /// True once, when the pause is over.
  bool startsNow(double now);
  void asked() { isAsked_ = true; }
  /// The job is over: no process starts any more.
  void over() { mayRestart_ = isPausing_ = false; }
  bool isPausing() const { return isPausing_; }

private:
  bool mayRestart_;
  bool isAsked_ = false, isPausing_ = false;
  int unheard_ = 0; ///< processes in a row that have ended without having heard the leader
  double startsAt_ = 0;
};

/// Seconds before a restart, by the number of restarts before it since the last save: 1, 2, 4, up
/// to 60.
double restartPause(int64_t inRow);

} // namespace shardc::launch
