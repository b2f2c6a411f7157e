// The process of a rank in a simulated world: finds its relay or rank 0's supervisor, does steps
// with the others, and ends like RendezvousClient.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>

#include "test/unit/launch/SocketRank.h"

namespace shardc::launch {

/// Options and results of a job, shared by its ranks.
struct SimJob {
  uint64_t seed = 0;
  std::mt19937_64 random;
  int64_t places = 1, perMachine = 1, steps = 4, saveInterval = 2;
  bool isElastic = false, startsAgain = false, isAsked = false;
  bool isDone = false; ///< a rank has done all its work
  /// Nothing is random; exchanges join all ranks, or the ranks of one machine.
  bool isPlain = false;
  double timeout = 20;
  int port = 0;
  Key secret = {7};
  int64_t attempt = 0; ///< number of the newest start of the ranks
  std::set<int64_t> saves;
  std::set<int64_t> trained; ///< steps whose batch was read, without those that a restart repeats
  int64_t goneReported = 0;  ///< ranks that have reported that rank 0 is gone
  int64_t welcomed = 0;      ///< number of ranks, over all starts
  double beganAt = 0,
         metAt = 0; ///< when the last rank began to look for the others, and when it had met them
  std::vector<std::string> wrong; ///< violations that were found

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  }
  double uniform(double most) { return most * static_cast<double>(random() >> 11) * 0x1p-53; }
  int64_t newestSave() const { return saves.empty() ? -1 : *saves.rbegin(); }
  std::string relayName(int64_t machine) const { return "relay " + std::to_string(machine); }
  /// Numbers of processes in FakeNetwork.
  int supervisorAt(int64_t place) const { return static_cast<int>(1 + place); }
  int rankAt(int64_t place) const { return static_cast<int>(1 + places + place); }

  /// Expected results of exchanges, by key and first member; each is computed once.
  std::map<std::pair<std::string, int>, std::vector<std::string>> expected;
};

class SimRank {
public:
  SimRank(SimJob &job, int64_t place, bool isSpeaker, double patience);

  void step(double now);
  /// The process is killed.
  void kill() { end_.close(), hasEnded_ = true; }
  /// Does nothing more, until another process of its machine ends it.
  void hang(double until) { killedAt_ = until; }
  bool hasEnded() const { return hasEnded_; }
  bool wasToldOver() const { return wasToldOver_; }
  bool hasHeard() const { return hasHeard_; }
  bool isSpeaker() const { return isSpeaker_; }
  bool isWorking() const { return state_ == State::Working; }

private:
  enum class State : uint8_t { Starting, Looking, Finding, Joining, Working, Leaving };
  struct Part {
    std::string key;
    std::vector<int> members; ///< empty: all
    hal::Peers::Fold fold;
  };

  void look(double now);
  void find(double now);
  void connect(int port, double now);
  void join(double now);
  void work(double now);
  void endStep(double now, const std::string &next);
  void save(double now);
  void exchange();
  void takeParts(double now);
  std::string partOf(const Part &part, int rank) const;
  const std::vector<std::string> &expectedOf(const Part &part) const;
  void hear(const Abort &abort, double now);
  void lose(double now);
  void again(double now);
  void endAt(double when, bool isOver);
  void beat(double now);
  Part partOfStep() const;

  SimJob &job_;
  int64_t place_;
  bool isSpeaker_;
  double patience_;
  SocketRank end_;
  Socket finder_;
  State state_ = State::Starting;
  bool hasEnded_ = false, wasToldOver_ = false, hasHeard_ = false;
  bool isWaiting_ = false, isResting_ = false;
  double readyAt_ = -1, since_ = -1, beganAt_ = -1, heardAt_ = 0, beatAt_ = 0, endsAt_ = -1,
         killedAt_ = -1;
  uint64_t heard_ = 0;
  int64_t step_ = 0;
  std::map<int64_t, double> saving_; ///< step -> when its save is written
  int phase_ = 0;                    ///< phase of a step; see partOfStep
};

} // namespace shardc::launch
