#include "runtime/launch/Relay.h"

#include <algorithm>

#include <unistd.h>

#include "runtime/base/Published.h"
#include "runtime/launch/Machine.h"

namespace shardc::launch {
namespace {

constexpr double kAgainSeconds = 0.2; ///< between two questions
constexpr double kBeatSeconds = 0.25; ///< between two messages about progress
constexpr double kPartSeconds =
    1; ///< until parts go up of an exchange that others have not come to
constexpr size_t kPartBytesMax = 16 << 20; ///< of one message with parts

} // namespace

Relay::Relay(RelayOptions options)
    : options_(std::move(options)), parentAddress_(options_.address), parentPort_(options_.port),
      ranks_(static_cast<size_t>(options_.worldSize)),
      routes_(static_cast<size_t>(options_.worldSize)),
      isBelow_(static_cast<size_t>(options_.worldSize)) {
  rendezvous_.worldSize = options_.worldSize;
  rendezvous_.planHash = options_.planHash;
  rendezvous_.secret = options_.secret;
  rendezvous_.job = options_.job;
  rendezvous_.tell = options_.tell;
}

std::vector<Connection *> Relay::children() const {
  std::vector<Connection *> all;
  for (const auto *list : {&ranks_, &relays_, &leaving_})
    for (const std::unique_ptr<Connection> &each : *list)
      if (each)
        all.push_back(each.get());
  return all;
}

size_t Relay::connections() const {
  return static_cast<size_t>(std::ranges::count_if(
             children(), [](const Connection *each) { return each->wire.isOpen(); })) +
         (above_.isOpen() ? 1 : 0);
}

Traffic Relay::traffic() const {
  Traffic all = above_.traffic();
  for (const Connection *child : children())
    all += child->wire.traffic();
  return all;
}

void Relay::addTo(std::vector<pollfd> &entries) {
  if (above_.isOpen())
    entries.push_back(
        {above_.fd(), static_cast<short>(POLLIN | (above_.hasUnsent() ? POLLOUT : 0)), 0});
  if (finders_.isOpen())
    entries.push_back({finders_.fd(), POLLIN, 0});
  if (admission_)
    admission_->addTo(entries, clock_);
  for (Connection *child : children())
    child->addTo(entries);
}

void Relay::advanceClock(double seconds) {
  if (lastSeconds_ >= 0)
    clock_ += std::clamp(seconds - lastSeconds_, 0.0, kPauseSeconds);
  lastSeconds_ = seconds;
}

void Relay::step(double seconds, std::span<const pollfd> entries) {
  advanceClock(seconds);
  if (state_ == State::Over)
    return;
  if (state_ == State::Asking)
    ask();
  if (above_.isOpen())
    serveAbove();
  if (state_ == State::Over)
    return;
  answerFinders();
  receiveChildren();
  for (Connection *child : children())
    if (child->wire.isOpen() && (child->isReady(entries) || child->wire.hasUnsent()) &&
        !serve(*child))
      lose(*child);
  if (state_ == State::Joined) {
    if (!joined_.empty()) {
      Packer packer;
      packer.number(joined_.size());
      for (const std::string &hello : joined_)
        packer.text(hello);
      above_.queue(MessageKind::Joined, packer.take());
      joined_.clear();
    }
    sendLate();
    if (clock_ - beatAt_ >= kBeatSeconds)
      sendBeats();
    above_.flush();
  }
  bool areAllGone = std::ranges::none_of(
      children(), [](const Connection *child) { return child->wire.isOpen(); });
  bool isEnd = isRunning_ && areAllGone && !above_.hasUnsent();
  if (isEnd || (endsAt_ >= 0 && clock_ > endsAt_) ||
      (state_ != State::Joined && clock_ > options_.joinSeconds))
    end();
}

void Relay::end() {
  above_.close();
  for (Connection *child : children())
    child->wire.close();
  admission_.reset();
  finders_.close();
  state_ = State::Over;
}

/// Rank 0's supervisor, or the relay that it has named.
void Relay::ask() {
  if (askedAt_ >= 0 && clock_ - askedAt_ < kAgainSeconds)
    return;
  askedAt_ = clock_;
  Result<Socket> socket = connectTo(parentAddress_, parentPort_, options_.askSeconds);
  if (!socket.isOk()) {
    parentAddress_ = options_.address, parentPort_ = options_.port;
    return;
  }
  above_ = Wire(std::move(*socket), kStrangerFrameBytesMax);
  state_ = State::Greeting;
}

/// Where what is above is reached from, the ranks of this machine and other machines reach this.
Status Relay::listen() {
  if (admission_)
    return Status::ok();
  std::string address = ownAddressOf(above_.socket());
  ASSIGN_OR_RETURN(Socket listener, listenOn(address, 0));
  port_ = portOf(listener);
  where_ = endpoint(address, port_);
  rendezvous_.where = where_;
  ASSIGN_OR_RETURN(finders_, publish(options_.name));
  admission_.emplace(std::move(listener), rendezvous_);
  return Status::ok();
}

void Relay::greet(const Message &message) {
  auto again = [this] {
    above_.close();
    parentAddress_ = options_.address, parentPort_ = options_.port;
    state_ = State::Asking;
  };
  if (message.kind == MessageKind::Challenge && !above_.isSealed()) {
    std::optional<Challenge> challenge = Challenge::unpack(message.body);
    if (!challenge || challenge->version != kProtocolVersion || !listen().isOk())
      return again();
    Hello hello;
    hello.job = options_.job;
    hello.nonce = randomBytes32();
    hello.rank = options_.rank;
    hello.worldSize = options_.worldSize;
    hello.planHash = options_.planHash;
    hello.pid = ::getpid();
    hello.relayPort = port_;
    hello.machine = machineId();
    hello.host = hostName();
    above_.queue(MessageKind::Hello, hello.pack(options_.secret, challenge->nonce));
    WireKeys keys(options_.secret, challenge->nonce, hello.nonce);
    above_.seal(keys.toServer, keys.toRank);
    return;
  }
  if (message.kind == MessageKind::Admitted) {
    above_.setBytesMax(kFrameBytesMax);
    state_ = State::Joined;
  } else if (message.kind == MessageKind::Redirect) {
    Unpacker in(message.body);
    std::string address = in.text();
    auto port = static_cast<int>(in.bounded(UINT16_MAX));
    again();
    if (in.isComplete())
      parentAddress_ = address, parentPort_ = port, askedAt_ = -1;
  } else if (message.kind == MessageKind::Abort) {
    take(message);
  } else {
    again();
  }
}

void Relay::serveAbove() {
  bool isAlive = above_.receive();
  while (above_.isOpen()) {
    std::optional<Message> message = above_.next();
    if (!message)
      break;
    state_ == State::Greeting ? greet(*message) : take(*message);
    isAlive = isAlive && above_.isOpen() && above_.receive();
  }
  if (!above_.isOpen() && state_ == State::Asking)
    return; // asks again
  if (above_.flush() && isAlive)
    return;
  if (state_ == State::Greeting) {
    above_.close();
    parentAddress_ = options_.address, parentPort_ = options_.port;
    state_ = State::Asking;
    return;
  }
  end(); // those below see that it has ended
}

void Relay::take(const Message &message) {
  switch (message.kind) {
  case MessageKind::Down:
    if (auto relayed = RelayedMessage::unpack(message.body, options_.worldSize))
      return passDown(*relayed);
    return;
  case MessageKind::Abort:
    endsAt_ = clock_ + kLeaveSeconds;
    isRunning_ = true; // nobody comes any more
    for (Connection *child : children())
      if (child->wire.isOpen()) {
        child->wire.queue(message.kind, message.body);
        child->wire.flush();
      }
    return;
  case MessageKind::Alive:
    for (Connection *child : children())
      if (child->wire.isOpen() && !child->wire.hasUnsent())
        child->wire.queue(message.kind, message.body);
    return;
  default:
    return;
  }
}

void Relay::passDown(const RelayedMessage &message) {
  std::map<Connection *, std::vector<int>> byRelay;
  for (int rank : message.ranks) {
    Connection *child = routes_[static_cast<size_t>(rank)];
    if (!child || !child->wire.isOpen())
      continue;
    if (child->hello->relayPort > 0)
      byRelay[child].push_back(rank);
    else
      child->wire.queue(message.kind, message.body);
  }
  if (message.kind == MessageKind::Welcome)
    isRunning_ = true;
  for (auto &[relay, ranks] : byRelay)
    relay->wire.queue(MessageKind::Down,
                      RelayedMessage{std::move(ranks), message.kind, message.body}.pack());
}

/// Those that do not fit are for rank 0's supervisor to judge.
void Relay::receiveChildren() {
  if (!admission_)
    return;
  auto phase = endsAt_ >= 0 ? Admission::Phase::Ending
               : isRunning_ ? Admission::Phase::Running
                            : Admission::Phase::Joining;
  while (std::optional<Admission::Arrival> arrival = admission_->next(clock_, phase, ranks_))
    admit(std::move(*arrival));
  static_cast<void>(
      admission_->accept(clock_)); // a rank that finds no room asks rank 0's supervisor
}

void Relay::admit(Admission::Arrival arrival) {
  Connection &child = *arrival.connection;
  if (arrival.kind == Admission::Arrival::TooLate || !child.wire.isSealed() || !child.hello) {
    child.wire.close();
    return;
  }
  if (child.hello->relayPort > 0) {
    if (relays_.size() >= options_.fanOut) {
      const Connection &other = *relays_[next_++ % relays_.size()];
      child.wire.queue(MessageKind::Redirect,
                       Packer()
                           .text(other.address)
                           .number(static_cast<uint64_t>(other.hello->relayPort))
                           .take());
      return admission_->seeOff(std::move(arrival.connection));
    }
    child.wire.setBytesMax(kFrameBytesMax);
    child.wire.queue(MessageKind::Admitted, "");
    relays_.push_back(std::move(arrival.connection));
    return;
  }
  child.wire.setBytesMax(kRankFrameBytesMax);
  child.wire.queue(MessageKind::Admitted, "");
  join(child.hello->text(), child);
  bool fits = arrival.kind == Admission::Arrival::Fits;
  auto rank = static_cast<size_t>(child.hello->rank);
  (fits ? ranks_[rank] : leaving_.emplace_back()) = std::move(arrival.connection);
}

void Relay::join(const std::string &text, Connection &by) {
  std::optional<Hello> hello = Hello::unpack(text);
  if (!hello)
    return by.wire.close();
  joined_.push_back(text);
  auto rank = static_cast<size_t>(hello->rank);
  if (rank >= routes_.size() || isBelow_[rank])
    return; // is not let in
  routes_[rank] = &by;
  isBelow_[rank] = true;
  ++countBelow_;
}

bool Relay::serve(Connection &child) {
  bool isAlive = child.wire.receive();
  while (std::optional<Message> message = child.wire.next()) {
    child.heardAt = clock_;
    handle(child, *message);
    isAlive = isAlive && child.wire.isOpen() && child.wire.receive();
  }
  return child.wire.isOpen() && child.wire.flush() && isAlive;
}

void Relay::handle(Connection &child, const Message &message) {
  if (child.hello->relayPort == 0)
    return handleRank(child, message);
  if (!handleRelay(child, message))
    child.wire.close();
}

bool Relay::handleRelay(Connection &child, const Message &message) {
  switch (message.kind) {
  case MessageKind::Joined: {
    Unpacker in(message.body);
    for (uint64_t left = in.bounded(routes_.size()); left > 0 && !in.hasFailed(); --left)
      join(in.text(), child);
    return in.isComplete();
  }
  case MessageKind::GatherAll:
    if (auto parts = RelayedParts::unpack(message.body, options_.worldSize)) {
      addParts(std::move(*parts));
      return true;
    }
    return false;
  case MessageKind::Beats:
    if (auto beats = RelayedBeats::unpack(message.body, options_.worldSize)) {
      for (size_t i = 0; i < beats->ranks.size(); ++i) {
        std::string &known = beats_[beats->ranks[i]];
        if (!beats->positions[i].empty())
          known = std::move(beats->positions[i]);
      }
      return true;
    }
    return false;
  case MessageKind::Up:
  case MessageKind::Gone:
    sendBeats(); // what a rank said before
    above_.queue(message.kind, message.body);
    return true;
  default:
    return false;
  }
}

void Relay::handleRank(Connection &child, const Message &message) {
  auto rank = static_cast<int>(child.hello->rank);
  if (message.kind == MessageKind::Gather) {
    std::optional<GatherPart> part = GatherPart::unpack(message.body, options_.worldSize);
    if (!part || !isRunning_)
      return child.wire.close();
    std::string bytes = std::exchange(part->bytes, "");
    return addParts({std::move(*part), {rank}, {std::move(bytes)}});
  }
  if (message.kind == MessageKind::Progress) {
    beats_[rank] = message.body;
    return;
  }
  child.isDone = child.isDone || message.kind == MessageKind::Bye;
  sendBeats();
  above_.queue(MessageKind::Up, RelayedMessage{{rank}, message.kind, message.body}.pack());
}

/// All below it are lost with it.
void Relay::lose(Connection &child) {
  child.wire.close();
  std::vector<int> lost;
  for (size_t rank = 0; rank < routes_.size(); ++rank)
    if (routes_[rank] == &child) {
      lost.push_back(static_cast<int>(rank));
      routes_[rank] = nullptr;
    }
  sendBeats();
  if (lost.empty() || state_ != State::Joined)
    return;
  Packer packer;
  packRanks(packer, lost);
  above_.queue(MessageKind::Gone, packer.take());
}

size_t Relay::below(const std::vector<int> &members) const {
  return members.empty() ? countBelow_
                         : static_cast<size_t>(std::ranges::count_if(members, [this](int member) {
                             return isBelow_[static_cast<size_t>(member)];
                           }));
}

void Relay::addParts(RelayedParts parts) {
  const GatherPart &exchange = parts.exchange;
  Key key = {exchange.key, exchange.fold, exchange.members};
  Pending &pending = pending_[key];
  if (pending.expected == 0) {
    pending.exchange = exchange;
    pending.expected = below(exchange.members);
  }
  if (pending.unsent.empty())
    pending.since = clock_;
  for (size_t i = 0; i < parts.ranks.size(); ++i)
    pending.unsent.emplace_back(parts.ranks[i], std::move(parts.parts[i]));
  pending.came += parts.ranks.size();
  if (pending.came < pending.expected)
    return;
  if (!answerHere(pending))
    sendParts(pending);
  pending_.erase(key);
}

/// Where all members are below, nobody above has to know.
bool Relay::answerHere(const Pending &pending) {
  const std::vector<int> &members = pending.exchange.members;
  if (pending.isSent || members.empty() || pending.expected < members.size())
    return false;
  std::map<int, const std::string *> byRank;
  for (const auto &[rank, bytes] : pending.unsent)
    byRank[rank] = &bytes;
  std::vector<std::string> parts;
  for (int member : members) {
    auto part = byRank.find(member);
    if (part == byRank.end())
      return false;
    parts.push_back(*part->second);
  }
  Packer all;
  for (const std::string &part : hal::Peers::folded(std::move(parts), pending.exchange.fold))
    all.text(part);
  passDown({members, MessageKind::Gathered, all.take()});
  return true;
}

/// In the order of members only the first that is not empty, where that is what is wanted.
void Relay::sendParts(Pending &pending) {
  std::vector<std::pair<int, std::string>> &unsent = pending.unsent;
  const std::vector<int> &members = pending.exchange.members;
  std::ranges::sort(unsent);
  if (pending.exchange.fold == hal::Peers::Fold::First) {
    auto placeOf = [&](int rank) {
      return members.empty() ? rank : std::ranges::find(members, rank) - members.begin();
    };
    std::pair<int, std::string> *first = nullptr;
    for (auto &each : unsent)
      if (!each.second.empty() && (!first || placeOf(each.first) < placeOf(first->first)))
        first = &each;
    for (auto &each : unsent)
      if (&each != first)
        each.second.clear();
  }
  for (size_t at = 0; at < unsent.size();) {
    RelayedParts parts = {pending.exchange, {}, {}};
    for (size_t bytes = 0; at < unsent.size() && bytes < kPartBytesMax; ++at) {
      bytes += unsent[at].second.size();
      parts.ranks.push_back(unsent[at].first);
      parts.parts.push_back(std::move(unsent[at].second));
    }
    above_.queue(MessageKind::GatherAll, parts.pack());
  }
  unsent.clear();
  pending.isSent = true;
}

/// Who waits long is known to rank 0's supervisor, which says what holds them up.
void Relay::sendLate() {
  for (auto &[key, pending] : pending_)
    if (!pending.unsent.empty() && clock_ - pending.since > kPartSeconds)
      sendParts(pending);
}

void Relay::sendBeats() {
  beatAt_ = clock_;
  if (beats_.empty() || state_ != State::Joined)
    return;
  RelayedBeats beats;
  for (auto &[rank, position] : beats_) {
    beats.ranks.push_back(rank);
    beats.positions.push_back(std::move(position));
  }
  beats_.clear();
  above_.queue(MessageKind::Beats, beats.pack());
}

void Relay::answerFinders() {
  if (finders_.isOpen() && state_ == State::Joined)
    answerAll(finders_, where_);
}

} // namespace shardc::launch
