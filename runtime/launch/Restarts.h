// The decisions of supervisors about restarting the ranks of a job after a fault. Rank 0's
// supervisor leads and the others follow. Neither state machine uses sockets, clocks or processes:
// events go in, with the time in seconds, and actions come out. The supervisor carries out the
// actions, and launch.simulation drives both machines with seeds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardc::launch {

/// The event that ended all ranks of an attempt.
struct FaultSeen {
  std::string id;       ///< id of the report
  int64_t step = 0;     ///< the last step that some rank had completed
  bool isFinal = false; ///< a restart cannot help: wrong input, or a request to end
  /// The part of the job that caused the fault is left out from now on, so the fault may not come
  /// back (Elastic.h).
  bool isMended = false;
  bool isSame(const FaultSeen &other) const { return id == other.id && step == other.step; }
};

/// An attempt of all ranks to run the job. The first one has number 0.
struct Attempt {
  int64_t number = 0;
  int64_t restarts = 0;   ///< faults before it; attempts also begin because a job grows
  int64_t savedStep = -1; ///< step of the save to load; -1: begin as the options say
  double pause = 0;       ///< seconds until its ranks may start
};

/// The state machine of rank 0's supervisor.
class RestartLeader {
public:
  /// `restartsMax`: the most restarts; 0: a fault ends the job.
  explicit RestartLeader(int64_t restartsMax) : restartsMax_(restartsMax) {}

  /// Ends: the ranks of a failed attempt are ending. Pauses: all have ended, and the next attempt
  /// may not start yet.
  enum class State : uint8_t { Runs, Ends, Pauses, Over };
  enum class Verdict : uint8_t { Again, NoRestarts, Final, Asked, UsedUp, CameBack };

  /// Records the first fault of an attempt. Unless the verdict is Again, the job is over.
  Verdict faulted(const FaultSeen &fault);
  /// Records that all ranks have saved and wait to continue with other rank numbers. Returns false
  /// if no attempt begins any more.
  bool resizes();
  /// Records that all processes that can still write a save have ended. `newestSave` is the step of
  /// the newest complete save of this run, or -1. Returns the attempt that starts after its pause.
  Attempt ended(double now, int64_t newestSave);
  /// Returns true once, when the pause is over: ranks start now.
  bool startsNow(double now);
  /// Records that the job was asked to end: no further attempt begins.
  void asked() { isAsked_ = true; }

  State state() const { return state_; }
  /// Whether the attempt that ends, or has ended, does so without a fault.
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
  int64_t inRow_ = 0; ///< restarts since the last save
  double startsAt_ = 0;
};

/// The supervisor of a rank on another machine, or of another process of the same launcher. It does
/// not know the leader's decisions: its rank asks the leader, which admits it or answers that the
/// job is over.
class RestartFollower {
public:
  explicit RestartFollower(bool mayRestart) : mayRestart_(mayRestart) {}

  /// How the process of a rank ended.
  struct RankEnd {
    bool wasToldOver = false; ///< the leader said that the job is over, or it left by itself
    bool hasHeard = false;    ///< whether it heard from the leader
  };
  /// Records that the process of a rank is gone. Returns true if another one will start.
  bool rankEnded(const RankEnd &end, double now);
  /// Returns true once, when the pause is over.
  bool startsNow(double now);
  void asked() { isAsked_ = true; }
  /// Records that the job is over: no further process starts.
  void over() { mayRestart_ = isPausing_ = false; }
  bool isPausing() const { return isPausing_; }

private:
  bool mayRestart_;
  bool isAsked_ = false, isPausing_ = false;
  int unheard_ = 0; ///< consecutive processes that ended without hearing the leader
  double startsAt_ = 0;
};

/// Returns the seconds before a restart, by the number of restarts since the last save: 1, 2, 4, up
/// to 60.
double restartPause(int64_t inRow);

} // namespace shardc::launch
