// A relay of the rendezvous: the supervisor of a machine's first rank runs it for the ranks of that
// machine, and for relays of other machines. To what is below it, it is what rank 0's supervisor
// is; to that, or to the relay above it, it is one connection, whatever number of ranks there is.
// It decides nothing: exchanges are folded on their way up, progress goes up a few times a second,
// other messages as they come. docs/adr/0063-tree-of-supervisors.md.
#pragma once

#include <map>

#include "runtime/launch/Admission.h"
#include "runtime/launch/RelayMessages.h"

namespace shardc::launch {

struct RelayOptions {
  std::string address; ///< of rank 0's supervisor
  int port = 0;
  int64_t rank = 0; ///< the machine's first, as the launcher counts
  int64_t worldSize = 1;
  uint64_t planHash = 0;
  Key secret{};
  std::string job;
  std::string name;         ///< under which ranks of this machine find it (publish)
  double joinSeconds = 600; ///< for rank 0's supervisor to let it in
  double askSeconds = 0.2;  ///< longest wait for an answer to one question
  size_t fanOut = kFanOut;  ///< relays that it takes; further ones go to these
  ReportSink tell;          ///< takes the first stranger
};

class Relay {
public:
  explicit Relay(RelayOptions options);
  Relay(const Relay &) = delete;
  Relay &operator=(const Relay &) = delete;

  /// Adds what has to be waited for.
  void addTo(std::vector<pollfd> &entries);
  /// Does all that can be done without waiting, but for askSeconds while it has no connection.
  /// `seconds` is a clock that only grows.
  void step(double seconds, std::span<const pollfd> entries);
  /// The machine's first rank has ended. A relay that has not joined by then has nobody to serve:
  /// what kept that rank out, such as a wrong address or secret, keeps the relay out too.
  void firstRankEnded() {
    if (state_ != State::Joined)
      end();
  }
  /// Nobody below is left, or what is above has ended.
  bool isOver() const { return state_ == State::Over; }
  /// That are open, and what has gone over them.
  size_t connections() const;
  Traffic traffic() const;
  /// What it says ranks of this machine, once it is joined.
  int port() const { return port_; }

private:
  enum class State : uint8_t { Asking, Greeting, Joined, Over };
  /// An exchange some of whose parts have come from below.
  struct Pending {
    GatherPart exchange;
    std::vector<std::pair<int, std::string>> unsent;
    size_t came = 0, expected = 0;
    double since = 0; ///< the first unsent part came
    bool isSent = false;
  };
  using Key = std::tuple<std::string, hal::Peers::Fold, std::vector<int>>;

  void advanceClock(double seconds);
  void ask();
  Status listen();
  void greet(const Message &message);
  void serveAbove();
  void take(const Message &message);
  void passDown(const RelayedMessage &message);
  void admit(Admission::Arrival arrival);
  void receiveChildren();
  bool serve(Connection &child);
  void handle(Connection &child, const Message &message);
  bool handleRelay(Connection &child, const Message &message);
  void handleRank(Connection &child, const Message &message);
  void lose(Connection &child);
  void join(const std::string &hello, Connection &by);
  void addParts(RelayedParts parts);
  void sendParts(Pending &pending);
  bool answerHere(const Pending &pending);
  void sendBeats();
  void sendLate();
  void answerFinders();
  void end();
  std::vector<Connection *> children() const;
  size_t below(const std::vector<int> &members) const;

  RelayOptions options_;
  RendezvousOptions rendezvous_; ///< as Admission needs them
  State state_ = State::Asking;
  std::string parentAddress_;
  int parentPort_ = 0, port_ = 0;
  std::optional<Admission> admission_;
  Socket finders_; ///< ranks of this machine that look for it
  std::string where_;
  Wire above_;
  RankConnections ranks_; ///< of this machine, by rank
  std::vector<std::unique_ptr<Connection>> relays_, leaving_;
  std::vector<Connection *> routes_; ///< by rank; null: not below
  std::vector<bool> isBelow_;        ///< by rank: has come
  size_t countBelow_ = 0, next_ = 0; ///< next_: which relay gets the next one
  std::vector<std::string> joined_;  ///< hellos that were not sent up
  std::map<Key, Pending> pending_;
  std::map<int, std::string> beats_; ///< by rank, not sent up; empty: it is alive
  double clock_ = 0, lastSeconds_ = -1, askedAt_ = -1, beatAt_ = 0, endsAt_ = -1;
  bool isRunning_ = false;
};

} // namespace shardc::launch
