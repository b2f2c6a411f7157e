// A job in a simulated world, random or of a given size: rank 0's supervisor with its server and
// its state machines of restarts and sizes, the other supervisors with their relays, and ranks.
// Only processes, sockets and time are simulated.
#pragma once

#include "runtime/launch/RendezvousServer.h"
#include "test/unit/launchsim/FakeNetwork.h"
#include "test/unit/launchsim/SimRank.h"

namespace shardc::launch {

class SimWorld {
public:
  explicit SimWorld(uint64_t seed);
  /// All start within a second, meet and do steps; three seconds later the rank in the middle is
  /// killed, and the job ends.
  SimWorld(int64_t ranks, int64_t perMachine);
  /// Runs until no process is left. Returns what went wrong; empty if nothing did.
  std::vector<std::string> run();

  bool endedWell() const { return exitStatus_ == 0; }
  int64_t attempts() const { return attempts_; }
  bool isDeep() const { return machines_ > static_cast<int64_t>(fanOut_) + 1; }
  int64_t resized() const { return resized_; }
  std::string describe() const;
  /// For a job of a given size: the load of each process, by level of the tree.
  std::string measured() const { return measured_; }
  /// After all have met: the busiest process's bytes, in and out, for each of its connections.
  double load() const { return load_; }

private:
  struct Supervisor {
    int64_t place = 0;
    bool isThere = true;
    double frozenUntil = 0, startsAt = -1;
    RestartFollower follower{false};
    std::unique_ptr<Relay> relay;
    std::unique_ptr<SimRank> rank;
  };

  void begin(double startSeconds);
  void openServer(const Attempt &attempt);
  Aftermath judge(const Downfall &fall);
  void stepLeader();
  void stepServer();
  void stepFollower(Supervisor &each);
  void stepRelay(Supervisor &each, bool isLast);
  void openRelay(Supervisor &each);
  void startRank(Supervisor &each, double patience);
  void strike();
  void lose(Supervisor &each);
  void loseMachine(int64_t machine);
  void bringBack(int64_t machine);
  void killTheMiddle();
  void measure(const std::string &until);
  std::string levelOf(const Supervisor &each) const;
  void stepRank(Supervisor &each);
  std::vector<std::string> check();
  int64_t machineOf(const Supervisor &each) const { return each.place / job_.perMachine; }
  bool hasAnybody() const;

  SimJob job_;
  int64_t machines_ = 1, restartsMax_ = 0, strikes_ = 0, attempts_ = 0, resized_ = 0;
  size_t fanOut_ = 1;
  double strikeChance_ = 0, askAt_ = -1, killedAt_ = -1, saidAt_ = -1;
  std::string measured_;
  std::vector<Usage> usageWhenMet_; ///< by supervisor
  double load_ = 0;
  std::optional<RestartLeader> leader_;
  std::optional<ElasticLeader> elastic_;
  Socket listener_;
  std::optional<RendezvousServer> server_;
  std::vector<Supervisor> supervisors_;
  std::vector<std::pair<double, int64_t>> returns_; ///< when each lost machine comes back
  std::vector<std::string> said_;
  Crew crew_;
  int64_t judged_ = 0; ///< number of judged ends of this attempt
  bool isMeasured_ = false, isServerLost_ = false, isFirstOfAnyLost_ = false, isLeaderOver_ = false;
  int exitStatus_ = -1;
};

} // namespace shardc::launch
