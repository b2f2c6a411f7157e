// A relay of the rendezvous. One of a machine's supervisors runs it for the ranks of that machine,
// and for relays of other machines. Towards its children it acts as rank 0's supervisor. Towards
// its parent it acts as one connection for any number of ranks. It decides nothing, not even who is
// admitted: it combines exchanges and progress on their way up, and forwards other messages
// unchanged; see docs/adr/0063-tree-of-supervisors.md. Each start of the ranks has its own relays.
// The first supervisor of a machine that takes the relay's name runs it, so another one can take
// over when that one ends.
#pragma once

#include <map>
#include <set>

#include "runtime/launch/Admission.h"
#include "runtime/launch/JobPosition.h"
#include "runtime/launch/StallDetector.h"
#include "runtime/launch/Survey.h"

namespace shardc::launch {

/// `rank` is that of the supervisor that runs the relay. `emit` receives the report about the first
/// stranger.
struct RelayOptions : JoinOptions {
  int64_t localSize = 0;   ///< ranks of this machine; 0 if unknown
  double askSeconds = 0.2; ///< longest wait for an answer of the parent
  size_t fanOut = kFanOut; ///< most relays below it; further ones are redirected to these
  /// A text that distinguishes a rank in addition to its number, such as its stage; may be empty.
  std::function<std::string(int64_t rank, int64_t worldSize)> stageOf;
};

class Relay {
public:
  explicit Relay(RelayOptions options);
  Relay(const Relay &) = delete;
  Relay &operator=(const Relay &) = delete;

  /// Adds the descriptors that it polls.
  void addTo(std::vector<pollfd> &entries);
  /// Does all work that needs no waiting, except that it may wait up to askSeconds while it has no
  /// connection. `seconds` is the time of a monotonic clock.
  void step(double seconds, std::span<const pollfd> entries);
  /// Must be called when the rank of its supervisor has ended and does not restart. If the relay
  /// has not joined by then, it serves nobody, so it ends: the reason that kept that rank out, such
  /// as a wrong address or secret, also keeps the relay out.
  void rankEnded() {
    if (state_ != State::Joined)
      end();
  }
  /// Whether no child is left, or the parent has ended.
  bool isOver() const { return state_ == State::Over; }
  /// Whether it has run out of descriptors and has reported so: ranks of its machine cannot join.
  bool hasGivenUp() const { return hasGivenUp_; }
  /// Whether it has heard that the whole job is over, and not only this start of its ranks.
  bool isJobOver() const { return isJobOver_; }
  /// The number of open connections, and the traffic of all connections so far.
  size_t connections() const;
  Traffic traffic() const;
  /// The port at which ranks of this machine connect to it; 0 until it has joined.
  int port() const { return state_ == State::Joined ? port_ : 0; }

private:
  enum class State : uint8_t { Electing, Asking, Greeting, Joined, Over };
  /// An exchange for which some parts have arrived from below.
  struct Pending {
    GatherPart exchange;
    std::vector<std::pair<int, std::string>> unsent;
    size_t came = 0, expected = 0;
    double since = 0; ///< when the first unsent part arrived
    bool isSent = false;
  };
  using Key = std::tuple<std::string, hal::Peers::Fold, std::vector<int>>;

  void advanceClock(double seconds);
  void elect();
  void ask();
  void askAgain(std::string reason);
  void giveUp(const Status &why);
  Status listen();
  void greet(const Message &message);
  void serveAbove();
  void serveBelow(std::span<const pollfd> entries);
  void take(const Message &message);
  void takeAbort(const std::string &body);
  Connection *routeTo(int64_t place) const;
  void addRoute(int64_t place, Connection &child);
  void passDown(const RelayedMessage &message);
  void passWelcome(const RelayedMessage &message);
  void receiveChildren();
  void admit(std::unique_ptr<Connection> child);
  bool serve(Connection &child);
  bool handleRelay(Connection &child, const Message &message);
  bool handleRank(Connection &child, const Message &message);
  void lose(Connection &child);
  void dropClosed();
  void addParts(RelayedParts parts);
  void sendParts(Pending &pending);
  bool answerHere(const Pending &pending);
  void sendUp();
  void sendLateParts();
  void sendBeat();
  void sendPosition(const Connection &child);
  void sendFor(const Connection &child, MessageKind kind, std::string body);
  void begin(const Ask &ask);
  std::vector<const Connection *> welcomed() const;
  void answerFinders();
  void end();
  std::vector<Connection *> children() const;
  size_t below(const std::vector<int> &members) const;
  bool isAwaited() const;
  bool isEnding() const { return !abort_.empty(); }

  RelayOptions options_;
  RendezvousOptions rendezvous_; ///< for the components that it shares with the server
  State state_ = State::Electing;
  std::string parentAddress_;
  int parentPort_ = 0, port_ = 0;
  std::optional<Admission> admission_;
  std::optional<Refusal> refusal_; ///< the last refusal, which applies to its ranks as well
  std::string reason_;             ///< why it has no connection, for messages
  Socket finders_;                 ///< receives ranks of this machine that look for it
  std::string where_;
  Wire above_;
  Connections ranks_; ///< of this machine
  Connections relays_;
  std::set<int64_t> came_;                 ///< places of this machine that have arrived
  std::map<int64_t, Connection *> routes_; ///< by place, for those below
  std::map<int, int> placeOf_;             ///< by rank, for those below that have begun
  int64_t started_ = 0;                    ///< number of ranks of this start
  std::vector<Hello> joined_;              ///< not sent to the parent yet
  std::map<Key, Pending> pending_;
  StallDetector progress_;
  LateRanks late_;
  Survey survey_;
  std::string abort_; ///< the message that ended this start
  double clock_ = 0, lastSeconds_ = -1, askedAt_ = -1, beatAt_ = 0, endedAt_ = -1;
  bool isJobOver_ = false, hasGivenUp_ = false;
};

} // namespace shardc::launch
