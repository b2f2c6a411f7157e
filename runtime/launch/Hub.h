// The rendezvous server of a job. Rank 0's supervisor runs it, so it outlives every rank. It admits
// ranks that prove that they know the job's secret, forwards small exchanges, and follows the
// progress of each rank. It decides which failure came first, reports that one exactly once, and
// ends all ranks. A connection that does not know the secret has no effect.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include <poll.h>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

struct HubOptions {
  int64_t worldSize = 1;
  uint64_t planHash = 0;
  Key secret{};
  std::string job; ///< distinguishes this launch from others that may have the same secret
  std::optional<Report> problem; ///< why the job cannot run, told immediately
  std::string where;             ///< address and port, for messages
  double timeoutSeconds = 600;   ///< longest stay in one collective or exchange
  double joinSeconds = 600;      ///< until all ranks have come
  /// One sentence about ranks whose work has stopped: which one fell behind, where the others wait.
  /// `silent` gives no sign of life, or is -1.
  std::function<std::string(std::span<const Snapshot>, int silent)> explainStall;
  /// A rank's position as text; empty if it has not begun.
  std::function<std::string(const Snapshot &)> describe;
  /// Takes the reports of the one failure, and of the first connection that was refused.
  ReportSink tell;
};

class Hub {
public:
  Hub(Socket listener, HubOptions options);
  ~Hub();

  /// Adds what has to be waited for.
  void addTo(std::vector<pollfd> &entries);
  /// Does all that can be done without waiting, where poll found something in what addTo added.
  /// `seconds` is a clock that only grows.
  void step(double seconds, std::span<const pollfd> entries);

  /// A process of this machine that holds a rank has ended by itself; `how` says in which way.
  void rankEnded(int64_t pid, const std::string &how);
  /// Ends the job without a further word.
  void stopAtOnce();

  /// True once all ranks have left, or had time enough to.
  bool isOver() const;
  bool hasFailed() const { return isEnding_; }
  /// All ranks have come.
  bool isRunning() const { return isRunning_; }
  /// The exit status of the job, once it is over.
  int exitStatus() const { return exitStatus_; }

private:
  struct Client;
  struct Cause;

  void accept();
  void shutOut(const Status &status);
  bool dropOldestStranger(double seconds);
  void serve(Client &client);
  void handle(Client &client, const Message &message);
  void admit(Client &client, const std::string &body);
  std::vector<Report> findFaults(const Hello &hello) const;
  void welcomeAll();
  void gather(Client &client, const std::string &body);
  void noteProgress(Client &client, const std::string &body);
  void noteGone(Client &client);
  void turnAway(Client &client, const char *why);
  void refuse(Client &client, Refusal::Reason reason);
  void warnOnce(const Client &client, const char *why);
  void tellOver(Client &client);
  void showLife();

  void blame(int64_t rank, StatusCode code, int exitStatus, std::vector<Report> reports);
  void decide();
  bool isOneAccusedSilent() const;
  void checkTimes();
  void checkStall();
  void checkAskedToEnd();
  std::string missingRanks() const;
  std::vector<Report> reportsOf(const Cause &cause) const;
  Report reportOfEnded(const Client &client) const;
  void end(int exitStatus, const std::vector<Report> &reports);
  void endSilent();

  HubOptions options_;
  Socket listener_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Client *> byRank_;
  std::vector<Cause> causes_;
  std::map<int64_t, std::string> lostIn_;   ///< by rank: where another one waited for it
  std::map<int64_t, std::string> howEnded_; ///< by process
  int64_t joined_ = 0, done_ = 0;
  int64_t strangers_ = 0;  ///< connections that have not said who they are
  bool hasWarned_ = false; ///< of a stranger
  double acceptsFrom_ = 0; ///< no connection is taken before
  double aliveAt_ = 0;     ///< time of the last heartbeat to the ranks
  /// Own time: a pause of this process itself does not count.
  double clock_ = 0, lastSeconds_ = -1;
  double endedAt_ = 0, decideAt_ = -1;
  bool isRunning_ = false, isEnding_ = false, hasEndedSilent_ = false;
  int exitStatus_ = 0;
};

} // namespace shardc::launch
