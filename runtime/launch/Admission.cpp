#include "runtime/launch/Admission.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/launch/RelayMessages.h"

namespace shardc::launch {
namespace {

constexpr double kHelloSeconds = 10;   ///< time limit for a connection to identify itself
constexpr double kFullSeconds = 0.1;   ///< pause after a failed attempt to accept
constexpr double kShakeSeconds = 1;    ///< time in which a rank normally identifies itself
constexpr int64_t kStrangersMax = 128; ///< unidentified connections; more evict the oldest
/// Handshakes younger than this many seconds wait for each other. Ranks of a large job that connect
/// at once answer within this time; if they evicted each other, none would be admitted.
constexpr double kYoungSeconds = 0.25;
constexpr double kCrowdSeconds = 0.01; ///< pause until the next check whether they are admitted

constexpr const char *kTooMany = "too many connections have not identified themselves";
constexpr const char *kNoMessage = "its data are not a message of a rank";

} // namespace

void Connection::queue(MessageKind kind, std::string_view body) {
  if (!via)
    return wire.queue(kind, body);
  if (!isOpen())
    return;
  RelayedMessage message = {{static_cast<int>(place)}, kind, std::string(body)};
  via->wire.queue(MessageKind::Down, packed(message));
}

void Connection::close() {
  if (!via)
    return wire.close();
  queue(MessageKind::Refused, packed(Refusal{Refusal::Complete})); // the relay then closes it
  isCut = true;
}

void Connection::addTo(std::vector<pollfd> &entries) {
  entry = SIZE_MAX;
  if (!wire.isOpen())
    return;
  entry = entries.size();
  entries.push_back({wire.fd(), static_cast<short>(POLLIN | (wire.hasUnsent() ? POLLOUT : 0)), 0});
}

void Admission::addTo(std::vector<pollfd> &entries, double now) {
  entries.push_back({now < acceptsFrom_ ? -1 : listener_.fd(), POLLIN, 0});
  for (const std::unique_ptr<Connection> &stranger : strangers_)
    stranger->addTo(entries);
}

std::unique_ptr<Connection> Admission::next(double now) {
  for (; served_ < strangers_.size(); ++served_) {
    std::unique_ptr<Connection> &stranger = strangers_[served_];
    if (!stranger->wire.isOpen() || !serve(*stranger, now))
      continue;
    std::unique_ptr<Connection> arrival = std::move(stranger);
    strangers_.erase(strangers_.begin() + static_cast<ptrdiff_t>(served_));
    return arrival;
  }
  served_ = 0;
  std::erase_if(strangers_, [](const auto &stranger) { return !stranger->wire.isOpen(); });
  return nullptr;
}

/// A relay that has been silent may be gone, and so may an earlier one of the same place. The new
/// relay is sent to neither of them as long as there are others.
Connection *Admission::admitRelay(std::unique_ptr<Connection> relay, Connections &relays,
                                  int64_t places) {
  auto share = [&](const Connection &of) {
    return places == 0 ? 0 : of.place * static_cast<int64_t>(options_.fanOut) / places;
  };
  auto isThere = [&](const std::unique_ptr<Connection> &other) {
    return other->wire.isOpen() && other->place != relay->place &&
           relay->heardAt - other->heardAt < kSilentSeconds;
  };
  bool isShareTaken = places > 0 && std::ranges::any_of(relays, [&](const auto &other) {
                        return isThere(other) && share(*other) == share(*relay);
                      });
  if (relays.size() < options_.fanOut && !isShareTaken) {
    relay->wire.setBytesMax(kFrameBytesMax);
    relay->queue(MessageKind::Admitted, "");
    relays.push_back(std::move(relay));
    return relays.back().get();
  }
  const Connection &other = **std::ranges::min_element(relays, {}, [&](const auto &each) {
    return std::tuple(!isThere(each), std::abs(share(*each) - share(*relay)),
                      std::abs(each->place - relay->place));
  });
  relay->queue(MessageKind::Redirect,
               Packer().text(other.address).number(other.hello->relayPort).take());
  seeOff(std::move(relay));
  return nullptr;
}

/// The connection of a rank behind a relay has no socket here, since the relay sends its messages.
/// Thus it need not be kept.
void Admission::seeOff(std::unique_ptr<Connection> connection) {
  connection->isLeaving = true;
  if (connection->wire.isOpen() && connection->wire.flush())
    strangers_.push_back(std::move(connection));
}

/// Accepts waiting connections. At most kStrangersMax connections that have not identified
/// themselves are open, so that programs that scan ports cannot keep ranks out: a further one
/// replaces the oldest if that is at least kYoungSeconds old, and waits otherwise. If no descriptor
/// is left, the oldest one is closed if it is at least kShakeSeconds old.
Status Admission::accept(double now) {
  for (int64_t i = 0; i < kStrangersMax && now >= acceptsFrom_; ++i) {
    if (strangersThere() >= kStrangersMax && !oldest(now, kYoungSeconds)) {
      acceptsFrom_ = now + kCrowdSeconds; // later connections wait until these are admitted
      return Status::ok();
    }
    Result<Socket> socket = acceptOne(listener_);
    if (!socket.isOk()) {
      // accept() mostly fails because no descriptors are left. Then the oldest connection that has
      // not identified itself is closed. If there is none, the new connection has to wait, since it
      // may be a rank.
      Connection *old = oldest(now, kShakeSeconds);
      if (old && socket.status().code() == StatusCode::Exhausted) {
        turnAway(*old, kTooMany);
        continue;
      }
      acceptsFrom_ = now + kFullSeconds;
      return strangersThere() == 0 ? socket.status() : Status::ok();
    }
    if (!socket->isOpen())
      return Status::ok();
    if (strangersThere() >= kStrangersMax)
      turnAway(*oldest(now, 0), kTooMany);
    auto stranger = std::make_unique<Connection>();
    stranger->address = otherAddressOf(*socket);
    stranger->wire = Wire(std::move(*socket), kStrangerFrameBytesMax);
    stranger->since = stranger->heardAt = now;
    stranger->challenge = randomBytes32();
    stranger->wire.queue(MessageKind::Challenge, packed(Challenge{.nonce = stranger->challenge}));
    stranger->wire.flush();
    strangers_.push_back(std::move(stranger));
  }
  return Status::ok();
}

int64_t Admission::strangersThere() const {
  return std::ranges::count_if(strangers_,
                               [](const auto &stranger) { return stranger->wire.isOpen(); });
}

/// Returns the oldest open connection that is at least `seconds` old; null if there is none.
Connection *Admission::oldest(double now, double seconds) const {
  auto at = std::ranges::find_if(strangers_, [&](const auto &stranger) {
    return stranger->wire.isOpen() && now - stranger->since >= seconds;
  });
  return at == strangers_.end() ? nullptr : at->get();
}

/// Returns true once the connection has identified itself.
bool Admission::serve(Connection &connection, double now) {
  Wire &wire = connection.wire;
  bool isAlive = wire.receive();
  while (std::optional<Message> message = wire.next()) {
    connection.heardAt = now;
    if (message->kind != MessageKind::Hello || connection.isLeaving)
      turnAway(connection, kNoMessage);
    else if (judge(connection, message->body))
      return true;
    isAlive = isAlive && wire.receive();
  }
  isAlive = wire.flush() && isAlive;
  bool isLate = now - connection.since > kHelloSeconds;
  if (connection.isLeaving && (!wire.hasUnsent() || !isAlive || isLate))
    wire.close();
  else if (!isAlive && wire.isOpen() && wire.hasUnread())
    turnAway(connection, kNoMessage);
  else if (!isAlive)
    wire.close(); // a port probe, or a rank of another launch that ended before it spoke
  else if (isLate && wire.isOpen())
    turnAway(connection, "it did not identify itself within 10 s");
  return false;
}

/// Refuses a connection that does not know the secret or belongs to another launch. Such a
/// connection changes nothing.
bool Admission::judge(Connection &connection, const std::string &body) {
  auto refuse = [&](Refusal::Reason reason) {
    connection.wire.queue(MessageKind::Refused, packed(Refusal{reason}));
    connection.isLeaving = true;
    return false;
  };
  std::optional<std::string_view> opened = Hello::open(body, options_.secret, connection.challenge);
  if (!opened) {
    warnOnce(connection, "it does not know the job's secret");
    return refuse(Refusal::AnotherSecret);
  }
  std::optional<Hello> hello = unpacked<Hello>(*opened);
  if (!hello) {
    turnAway(connection, kNoMessage);
    return false;
  }
  if (hello->job != options_.job)
    return refuse(Refusal::AnotherJob);
  if (hello->version == kProtocolVersion) {
    WireKeys keys(options_.secret, connection.challenge, hello->nonce);
    connection.wire.seal(keys.toRank, keys.toServer);
  }
  connection.place = hello->rank;
  connection.hello = std::move(*hello);
  return true;
}

/// Compares what a new rank says of itself with the job: version, number of ranks, own number,
/// plan. An empty list admits it. Its own problems are part of the result, with its rank before the
/// text.
std::vector<Report> Admission::findFaults(const Hello &hello, const Connections &ranks) const {
  if (hello.version != kProtocolVersion)
    return {makeReport(
        report::OtherVersion,
        fmt::format("a rank runs another version of this program (protocol {}, rank 0 has {})",
                    hello.version, kProtocolVersion))};
  std::string who = fmt::format("process {} on {}", hello.pid, hello.host);
  auto disagree = [](std::string text) -> std::vector<Report> {
    return {makeReport(report::RanksDisagree, text)};
  };
  int64_t started = options_.elastic ? options_.elastic->options().places() : options_.worldSize;
  if (hello.worldSize != started)
    return disagree(fmt::format("rank {} ({}) was started as one of {} ranks, rank 0 as one of {}",
                                hello.rank, who, hello.worldSize, started));
  if (hello.rank >= started)
    return disagree(fmt::format("{} was started as rank {}; {} ranks are numbered 0 to {}", who,
                                hello.rank, started, started - 1));
  if (hello.relayPort > 0) // a relay takes no rank's place; its ranks are checked here as well
    return {};
  // In an elastic job a later process of the same place replaces the earlier one, which may have
  // vanished without a message.
  const Connection *other =
      options_.elastic ? nullptr : ranks[static_cast<size_t>(hello.rank)].get();
  if (other)
    return disagree(fmt::format("two processes were started as rank {}: process {} on {} and {}",
                                hello.rank, other->hello->pid, other->hello->host, who));
  if (hello.problems.empty() && hello.planHash != options_.planHash)
    return {makeReport(report::OtherPlan, hello.rank, who)};
  std::vector<Report> problems = hello.problems;
  for (Report &problem : problems)
    problem.text = fmt::format("rank {}: {}", hello.rank, problem.text);
  return problems;
}

/// Closes a connection that does not belong to a rank.
void Admission::turnAway(Connection &connection, const char *why) {
  connection.wire.close();
  warnOnce(connection, why);
}

/// Only the first refused connection is reported. It may be a rank that was started incorrectly;
/// further ones could flood the output.
void Admission::warnOnce(const Connection &connection, const char *why) {
  if (!hasWarned_)
    options_.emit(makeReport(report::ConnectionRefused, connection.address, options_.where, why));
  hasWarned_ = true;
}

void Admission::refuse(std::unique_ptr<Connection> connection, Refusal::Reason reason) {
  connection->queue(MessageKind::Refused, packed(Refusal{reason}));
  seeOff(std::move(connection));
}

} // namespace shardc::launch
