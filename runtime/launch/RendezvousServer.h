// The rendezvous server of a job. Rank 0's supervisor runs it, so it outlives every rank. It admits
// ranks (Admission), forwards small exchanges between them (Exchange), follows their progress
// (StallDetector), decides which failure came first (RootCause), reports that one exactly once, and
// ends all ranks. Ranks of other machines connect through relays (Relay.h).
#pragma once

#include "runtime/launch/Admission.h"
#include "runtime/launch/Exchange.h"
#include "runtime/launch/LateRanks.h"
#include "runtime/launch/Relay.h"
#include "runtime/launch/RootCause.h"
#include "runtime/launch/StallDetector.h"

namespace shardc::launch {

class RendezvousServer {
public:
  RendezvousServer(Socket listener, RendezvousOptions options);
  RendezvousServer(const RendezvousServer &) = delete;
  RendezvousServer &operator=(const RendezvousServer &) = delete;

  /// Adds the descriptors that it polls.
  void addTo(std::vector<pollfd> &entries);
  /// Does all work that needs no waiting. `entries` are the descriptors of addTo after poll, and
  /// `seconds` is the time of a monotonic clock.
  void step(double seconds, std::span<const pollfd> entries);

  /// Records that a process of this machine that holds a rank has ended by itself; `how` describes
  /// its end.
  void rankEnded(int64_t pid, const std::string &how);
  /// Ends the job without a further message.
  void stopAtOnce();
  /// Ends the job on request before all ranks have arrived.
  void stopBeforeSteps();

  /// Whether all ranks have left, or have had enough time to.
  bool isOver() const;
  bool hasFailed() const { return isEnding_; }
  /// Whether all ranks have arrived.
  bool isRunning() const { return isRunning_; }
  /// The last step that some rank has completed, as far as ranks have reported.
  int64_t lastStep() const;
  /// The number of open connections to ranks and relays, and the traffic of all connections so far.
  size_t connections() const;
  Traffic traffic() const;
  /// The exit status of the job. Valid once the job is over.
  int exitStatus() const { return exitStatus_; }

private:
  void advanceClock(double seconds);
  void receiveRanks();
  void arrive(std::unique_ptr<Connection> connection);
  void admit(std::unique_ptr<Connection> connection);
  void admitPlace(std::unique_ptr<Connection> connection);
  void beginIfAllAreThere();
  void chooseRanks();
  void reportGrowth();
  void welcomeAll();
  void sendOver(Connection &connection);
  void serve(Connection &rank);
  void serveRelay(Connection &relay);
  bool handleRelay(Connection &relay, const Message &message);
  bool handleJoined(Connection &relay, const std::string &body);
  bool handleGone(Connection &relay, const std::string &body);
  bool handleUp(Connection &relay, const std::string &body);
  bool handleParts(Connection &relay, const std::string &body);
  int64_t places() const {
    return options_.elastic ? options_.elastic->options().places() : options_.worldSize;
  }
  std::unique_ptr<Connection> *behind(const Connection &relay, int64_t place);
  void lose(Connection &rank);
  void sendTo(const std::vector<int> &ranks, MessageKind kind, const std::string &body);
  void serveIdle(std::unique_ptr<Connection> &idle);
  void dropIdle(std::unique_ptr<Connection> &idle);
  void handle(Connection &rank, const Message &message);
  void handleGather(Connection &rank, const std::string &body);
  void endExchange(int64_t rank);
  void handleLost(Connection &rank, const std::string &body);
  void handleBye(Connection &rank, const std::string &body);
  void handleFailure(const Connection &rank, const std::string &body);
  void handleRest(Connection &rank);
  void showLife();
  void checkTimes();
  void checkJoining();
  Standing standing() const;
  void ask(Ask::What what);
  void takeAnswer(const Answer &answer);
  std::vector<Connection *> everyone(bool withRelays = false) const;
  bool areAllDone() const { return isRunning_ && done_ == options_.worldSize; }
  bool isOverForIdle() const { return options_.elastic && areAllDone(); }
  void reportIdleOver();
  void reportLate(const Waits &waits);

  void fail(RootCause::Failure failure);
  void end(int exitStatus, const std::vector<Report> &reports);
  /// Like end(), but the ranks may start again instead.
  void endByFault(int exitStatus, const std::vector<Report> &reports);
  Report located(Report stall) const;
  void endSilent();

  RendezvousOptions options_;
  Admission admission_;
  Exchange exchange_;
  StallDetector progress_;
  LateRanks late_; ///< for the ranks that have connections of their own
  LateJudge lateJudge_;
  Survey survey_; ///< for the ranks behind relays
  RootCause rootCause_;
  Connections ranks_;           ///< empty in an elastic job until its ranks are chosen
  std::vector<int64_t> rankAt_; ///< by place; -1: none
  Connections relays_;          ///< at most fanOut, for ranks of other machines
  std::vector<int> admitted_;   ///< places behind the served relay, admitted together
  Connections idle_;            ///< in an elastic job: the places without a rank, by place
  int64_t growsTo_ = 0;         ///< the value that rank 0 was told
  int64_t joined_ = 0, done_ = 0;
  double checkedAt_ = -1; ///< time of the last check of time limits
  double aliveAt_ = 0;    ///< time of the last heartbeat to the ranks
  /// Own time, in which pauses of this process itself do not count.
  double clock_ = 0, lastSeconds_ = -1;
  double endedAt_ = 0; ///< when the job ended, or all ranks were done
  bool areIdleReported_ = false;
  bool isRunning_ = false, isEnding_ = false, hasEndedSilent_ = false;
  int exitStatus_ = 0;
};

} // namespace shardc::launch
