#include "runtime/launch/Relay.h"

#include <algorithm>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Published.h"
#include "runtime/launch/Machine.h"

namespace shardc::launch {
namespace {

constexpr double kAgainSeconds = 0.2; ///< time between two attempts to find the parent
constexpr double kBeatSeconds = 0.25; ///< time between two progress messages
/// A place without a rank counts as gone after this much silence.
constexpr double kIdleSeconds = 30;

} // namespace

Relay::Relay(RelayOptions options)
    : options_(std::move(options)), parentAddress_(options_.address), parentPort_(options_.port),
      progress_(rendezvous_) {
  rendezvous_.worldSize = options_.worldSize;
  rendezvous_.secret = options_.secret;
  rendezvous_.job = options_.job;
  rendezvous_.emit = options_.emit;
  rendezvous_.fanOut = options_.fanOut;
}

std::vector<Connection *> Relay::children() const {
  std::vector<Connection *> all;
  for (const auto *list : {&ranks_, &relays_})
    for (const std::unique_ptr<Connection> &each : *list)
      all.push_back(each.get());
  return all;
}

size_t Relay::connections() const { return children().size() + (above_.isOpen() ? 1 : 0); }

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
  if (state_ == State::Electing)
    elect();
  if (state_ == State::Asking)
    ask();
  if (above_.isOpen())
    serveAbove();
  if (state_ == State::Over)
    return;
  answerFinders();
  serveBelow(entries);
  receiveChildren();
  if (state_ == State::Joined)
    sendUp();
  dropClosed();
  bool hasNobody = ranks_.empty() && relays_.empty() && !above_.hasUnsent();
  if (isEnding() ? (hasNobody && !isAwaited()) || clock_ - endedAt_ > kLeaveSeconds
                 : (hasNobody && !placeOf_.empty()) ||
                       (state_ != State::Joined && clock_ > options_.joinSeconds))
    end();
}

/// Whether ranks of this machine may still look for this relay because they have not heard that the
/// job is over.
bool Relay::isAwaited() const {
  bool haveAllCome =
      !placeOf_.empty() || (options_.localSize > 0 && std::ssize(came_) >= options_.localSize);
  return isJobOver_ && (options_.startsAgain || !haveAllCome);
}

void Relay::serveBelow(std::span<const pollfd> entries) {
  for (Connection *child : children())
    if (child->wire.isOpen() &&
        (child->isReady(entries) || child->wire.hasUnsent() || child->isLeaving) && !serve(*child))
      lose(*child);
  for (const std::unique_ptr<Connection> &rank : ranks_)
    if (options_.isElastic && !rank->isWelcome && rank->wire.isOpen() &&
        clock_ - rank->heardAt > kIdleSeconds)
      lose(*rank);
}

void Relay::dropClosed() {
  for (auto *list : {&ranks_, &relays_})
    std::erase_if(*list, [](const auto &each) { return !each || !each->wire.isOpen(); });
}

/// Forwards messages that arrived from above before the end, such as which rank reports the
/// failure.
void Relay::end() {
  above_.close();
  for (Connection *child : children()) {
    child->wire.flush();
    child->wire.close();
  }
  dropClosed();
  admission_.reset();
  finders_.close();
  state_ = State::Over;
}

void Relay::elect() {
  if (askedAt_ >= 0 && clock_ - askedAt_ < kAgainSeconds)
    return;
  askedAt_ = clock_;
  Result<Socket> finders = publish(options_.relayName);
  if (finders.status().code() == StatusCode::Exhausted)
    return giveUp(finders.status());
  if (!finders.isOk())
    return; // another relay has the name
  finders_ = std::move(*finders);
  state_ = State::Asking;
  askedAt_ = -1;
}

/// Connects to the address above this relay: rank 0's supervisor, or the relay that it named.
void Relay::ask() {
  if (askedAt_ >= 0 && clock_ - askedAt_ < kAgainSeconds)
    return;
  askedAt_ = clock_;
  Result<Socket> socket = connectTo(parentAddress_, parentPort_, options_.askSeconds);
  if (socket.status().code() == StatusCode::Exhausted)
    return giveUp(socket.status());
  if (!socket.isOk())
    return askAgain(socket.status().message());
  above_ = Wire(std::move(*socket), kStrangerFrameBytesMax);
  state_ = State::Greeting;
}

void Relay::askAgain(std::string reason) {
  above_.close();
  reason_ = std::move(reason);
  parentAddress_ = options_.address, parentPort_ = options_.port;
  state_ = State::Asking;
}

/// Without descriptors, the ranks of this machine would look for the relay until their time is
/// over. Rank 0's supervisor reports the problem, in the name of a rank of this machine, if it can
/// be reached.
void Relay::giveUp(const Status &why) {
  Report report = makeStatus(StatusCode::Exhausted,
                             "its supervisor {}; it needs a descriptor for each rank of this "
                             "machine and each relay ('ulimit -n')",
                             why.message())
                      .report();
  Report named = report;
  named.text = fmt::format("rank {}: {}", options_.rank, report.text);
  hasGivenUp_ = true;
  if (state_ != State::Joined) {
    options_.emit(named);
    return end();
  }
  if (ranks_.empty()) {
    Hello own = ownHello(options_.job, options_.rank, options_.worldSize);
    own.problems = {report};
    joined_.push_back(std::move(own));
    sendUp();
  } else {
    sendUp();
    Failure failure = {.code = why.code(), .exitStatus = kInputStatus, .reports = {named}};
    sendFor(*ranks_.front(), MessageKind::Fail, packed(failure));
    above_.flush();
  }
  end();
}

/// Listens at the address from which the relay reaches its parent; ranks of this machine and relays
/// of other machines connect there.
Status Relay::listen() {
  if (admission_)
    return Status::ok();
  std::string address = ownAddressOf(above_.socket());
  ASSIGN_OR_RETURN(Socket listener, listenOn(address, 0));
  port_ = portOf(listener);
  where_ = endpoint(address, port_);
  rendezvous_.where = where_;
  admission_.emplace(std::move(listener), rendezvous_);
  return Status::ok();
}

/// Handles the messages of the parent until this relay is admitted. The relay opens its own port
/// first and includes it in its greeting. If it is sent to another relay, or refused, it asks again
/// later.
void Relay::greet(const Message &message) {
  std::string where = endpoint(options_.address, options_.port);
  if (message.kind == MessageKind::Challenge && !above_.isSealed()) {
    std::optional<Challenge> challenge = unpacked<Challenge>(message.body);
    Status listens = listen();
    if (listens.code() == StatusCode::Io) // no descriptors are left
      return giveUp(listens);
    if (!listens.isOk() || !challenge)
      return askAgain(listens.isOk() ? "the program that listens there is not rank 0 of a job"
                                     : listens.message());
    if (challenge->version != kProtocolVersion) {
      refusal_ = Refusal{Refusal::AnotherVersion};
      return askAgain("another version");
    }
    Hello hello = ownHello(options_.job, options_.rank, options_.worldSize);
    hello.relayPort = port_;
    above_.introduce(hello, options_.secret, challenge->nonce);
  } else if (message.kind == MessageKind::Admitted) {
    above_.setBytesMax(kFrameBytesMax);
    state_ = State::Joined;
  } else if (message.kind == MessageKind::Redirect) {
    Unpacker in(message.body);
    std::string address = in.text();
    auto port = static_cast<int>(in.bounded(UINT16_MAX));
    askAgain("it was sent to another relay");
    if (in.isComplete())
      parentAddress_ = address, parentPort_ = port, askedAt_ = -1;
  } else if (message.kind == MessageKind::Abort) {
    Abort abort = unpacked<Abort>(message.body).value_or(Abort{});
    if (abort.exitStatus == kAgainStatus)
      return askAgain("the ranks start again");
    state_ = State::Joined; // ranks that connect to it get the abort
    takeAbort(message.body);
  } else {
    refusal_ =
        message.kind == MessageKind::Refused ? unpacked<Refusal>(message.body) : std::nullopt;
    askAgain("it was refused");
  }
}

void Relay::serveAbove() {
  bool isAlive = above_.serve([this](const Message &message) {
    state_ == State::Greeting ? greet(message) : take(message);
  });
  if (isAlive || state_ == State::Asking)
    return;
  if (state_ == State::Greeting)
    return askAgain("the program that listens there closed the connection");
  above_.close();
  if (!isEnding())
    end(); // the processes below notice that the relay has ended
}

void Relay::take(const Message &message) {
  switch (message.kind) {
  case MessageKind::Down:
    if (auto relayed = unpacked<RelayedMessage>(message.body, options_.worldSize))
      relayed->kind == MessageKind::Welcome ? passWelcome(*relayed) : passDown(*relayed);
    return;
  case MessageKind::Abort:
    return takeAbort(message.body);
  case MessageKind::Alive:
    for (Connection *child : children())
      if (child->wire.isOpen() && child->wire.isSealed() && !child->wire.hasUnsent())
        child->wire.queue(message.kind, message.body);
    return;
  case MessageKind::Ask:
    if (std::optional<Ask> ask = unpacked<Ask>(message.body))
      begin(*ask);
    return;
  default:
    return;
  }
}

/// Ranks of this machine that do not respond are killed by other ranks of it.
void Relay::takeAbort(const std::string &body) {
  Abort abort = unpacked<Abort>(body).value_or(Abort{});
  isJobOver_ = abort.exitStatus != kAgainStatus;
  endedAt_ = clock_;
  abort_ = body;
  for (const std::unique_ptr<Connection> &rank : ranks_)
    if (rank->isWelcome && !rank->isDone && clock_ - rank->heardAt > kSilentSeconds)
      abort.silent.push_back({rank->hello->machine, rank->hello->pid});
  std::string own = packed(abort);
  for (Connection *child : children())
    if (child->wire.isOpen()) {
      child->wire.queue(MessageKind::Abort, child->hello->relayPort > 0 ? body : own);
      child->wire.flush();
    }
}

/// Returns the open connection towards a place; null if there is none.
Connection *Relay::routeTo(int64_t place) const {
  auto route = routes_.find(place);
  return route != routes_.end() && route->second->wire.isOpen() ? route->second : nullptr;
}

/// Ignores a place that cannot exist; rank 0's supervisor reports it.
void Relay::addRoute(int64_t place, Connection &child) {
  if (place < options_.worldSize && (!routeTo(place) || options_.isElastic))
    routes_[place] = &child;
}

/// Sends a message to ranks. Those behind the same further relay get one message together, which
/// that relay passes on.
void Relay::passDown(const RelayedMessage &message) {
  std::map<Connection *, std::vector<int>> byRelay;
  for (int place : message.places) {
    Connection *child = routeTo(place);
    if (!child)
      continue;
    if (child->hello->relayPort > 0) {
      byRelay[child].push_back(place);
      continue;
    }
    child->wire.queue(message.kind, message.body);
    child->isLeaving = child->isLeaving || message.kind == MessageKind::Refused;
  }
  for (auto &[relay, places] : byRelay)
    relay->wire.queue(MessageKind::Down,
                      packed(RelayedMessage{std::move(places), message.kind, message.body}));
}

/// Sends each rank its own number. From now on the relay knows which ranks are below it.
void Relay::passWelcome(const RelayedMessage &message) {
  std::optional<RelayedWelcome> all = unpacked<RelayedWelcome>(message.body, options_.worldSize);
  if (!all || all->ranks.size() != message.places.size())
    return;
  started_ = all->welcome.worldSize;
  std::map<Connection *, std::pair<std::vector<int>, std::vector<int>>> byRelay;
  for (size_t i = 0; i < all->ranks.size(); ++i) {
    int place = message.places[i], rank = all->ranks[i];
    Connection *child = routeTo(place);
    placeOf_[rank] = place;
    if (!child)
      continue; // the message that it is gone is on its way up
    if (child->hello->relayPort > 0) {
      byRelay[child].first.push_back(place);
      byRelay[child].second.push_back(rank);
      continue;
    }
    Welcome own = all->welcome;
    own.rank = child->hello->rank = rank;
    child->isWelcome = true;
    child->heardAt = clock_;
    child->wire.queue(MessageKind::Welcome, packed(own));
  }
  for (auto &[relay, own] : byRelay) {
    RelayedWelcome part = {std::move(own.second), all->welcome};
    relay->wire.queue(
        MessageKind::Down,
        packed(RelayedMessage{std::move(own.first), MessageKind::Welcome, packed(part)}));
  }
}

/// What a new connection gets depends on this relay's own state: ranks are admitted only after it
/// has joined and while the job does not end.
void Relay::receiveChildren() {
  if (!admission_)
    return;
  while (std::unique_ptr<Connection> child = admission_->next(clock_)) {
    if (!child->wire.isSealed())
      admission_->refuse(std::move(child), Refusal::AnotherVersion);
    else if (state_ != State::Joined)
      admission_->refuse(std::move(child), refusal_ ? refusal_->reason : Refusal::Complete);
    else if (isEnding()) {
      if (child->hello->relayPort == 0)
        came_.insert(child->place);
      child->queue(MessageKind::Abort, abort_);
      admission_->seeOff(std::move(child));
    } else if (child->hello->relayPort > 0)
      admission_->admitRelay(std::move(child), relays_, 0);
    else
      admit(std::move(child));
  }
  Status status = admission_->accept(clock_);
  if (status.code() == StatusCode::Exhausted && placeOf_.empty() && !isEnding())
    giveUp(status);
}

/// Forwards the hello of a rank; rank 0's supervisor decides whether to admit it. If two processes
/// have the same place, the later one replaces the earlier one unless that has begun. In a job that
/// is not elastic, there must not be two.
void Relay::admit(std::unique_ptr<Connection> child) {
  Connection *known = routeTo(child->place);
  if (known && known->isWelcome)
    return admission_->refuse(std::move(child), Refusal::Complete);
  if (known && options_.isElastic)
    known->wire.close();
  addRoute(child->place, *child);
  child->wire.setBytesMax(kRankFrameBytesMax);
  joined_.push_back(*child->hello);
  came_.insert(child->place);
  ranks_.push_back(std::move(child));
}

bool Relay::serve(Connection &child) {
  bool isAlive = child.wire.serve([&](const Message &message) {
    child.heardAt = clock_;
    if (!(child.hello->relayPort > 0 ? handleRelay(child, message) : handleRank(child, message)))
      child.wire.close();
  });
  return isAlive && !(child.isLeaving && !child.wire.hasUnsent());
}

/// Returns false if the message is not one that relays send.
bool Relay::handleRelay(Connection &child, const Message &message) {
  switch (message.kind) {
  case MessageKind::Joined: {
    auto all = unpacked<RelayedHellos>(message.body, options_.worldSize);
    for (size_t i = 0; all && i < all->hellos.size(); ++i) {
      addRoute(all->hellos[i].rank, child);
      joined_.push_back(std::move(all->hellos[i]));
    }
    return all.has_value();
  }
  case MessageKind::GatherAll:
    if (auto parts = unpacked<RelayedParts>(message.body, options_.worldSize)) {
      addParts(std::move(*parts));
      return true;
    }
    return false;
  case MessageKind::Beat:
    child.standing = unpacked<Standing>(message.body, options_.worldSize);
    return child.standing.has_value();
  case MessageKind::Answer:
    return survey_.take(child, message.body, options_.worldSize);
  case MessageKind::Gone:
  case MessageKind::Up:
    sendUp(); // messages that arrived earlier go first
    above_.queue(message.kind, message.body);
    return true;
  default:
    return false;
  }
}

/// Handles a message of a rank below this relay. Gathers are joined with those of other ranks,
/// progress is noted, and anything else goes up at once. False if the message is malformed.
bool Relay::handleRank(Connection &child, const Message &message) {
  auto rank = static_cast<int>(child.hello->rank);
  if (message.kind == MessageKind::Gather) {
    std::optional<GatherPart> part = unpacked<GatherPart>(message.body, options_.worldSize);
    if (!part || !child.isWelcome)
      return false;
    std::string bytes = std::exchange(part->bytes, "");
    addParts({std::move(*part), {{std::move(bytes), {rank}}}});
    return true;
  }
  if (message.kind == MessageKind::Progress) {
    std::optional<RankProgress> position = unpacked<RankProgress>(message.body);
    if (position && child.isWelcome) {
      progress_.note(rank, *position, clock_);
      late_.note(rank, *position, clock_);
    }
    return position.has_value();
  }
  child.isDone = child.isDone || message.kind == MessageKind::Bye;
  sendUp();
  sendPosition(child);
  sendFor(child, message.kind, message.body);
  return true;
}

/// Sends the position of a rank that fails or ends, since a message may mention that position.
void Relay::sendPosition(const Connection &child) {
  if (child.hello->relayPort == 0 && child.isWelcome && state_ == State::Joined)
    sendFor(child, MessageKind::Progress, packed(progress_.last(child.hello->rank)));
}

void Relay::sendFor(const Connection &child, MessageKind kind, std::string body) {
  above_.queue(MessageKind::Up,
               packed(RelayedMessage{{static_cast<int>(child.place)}, kind, std::move(body)}));
}

/// Handles the loss of a child. All places below it are lost too.
void Relay::lose(Connection &child) {
  child.wire.close();
  survey_.drop(child);
  std::vector<int> lost;
  for (const auto &[place, route] : routes_)
    if (route == &child)
      lost.push_back(static_cast<int>(place));
  for (int place : lost)
    routes_.erase(place);
  if (lost.empty() || state_ != State::Joined)
    return;
  sendUp();
  sendPosition(child);
  above_.queue(MessageKind::Gone, Packer().ranks(lost).take());
}

void Relay::sendUp() {
  if (!joined_.empty())
    above_.queue(MessageKind::Joined, packed(RelayedHellos{std::exchange(joined_, {})}));
  sendLateParts();
  if (std::optional<Answer> answer = survey_.finish(clock_))
    above_.queue(MessageKind::Answer, packed(*answer));
  if (clock_ - beatAt_ >= kBeatSeconds)
    sendBeat();
  above_.flush();
}

std::vector<const Connection *> Relay::welcomed() const {
  std::vector<const Connection *> all;
  for (const std::unique_ptr<Connection> &rank : ranks_)
    if (rank->isWelcome && rank->wire.isOpen())
      all.push_back(rank.get());
  return all;
}

/// Sends the combined progress, which is also a sign of life.
void Relay::sendBeat() {
  beatAt_ = clock_;
  above_.queue(MessageKind::Beat, packed(progress_.standingOf(welcomed(), relays_, clock_)));
}

void Relay::begin(const Ask &ask) {
  Answer own;
  if (ask.what == Ask::Waits)
    own.waits = late_.take(clock_, [this](int64_t rank) {
      return options_.stageOf ? options_.stageOf(rank, started_) : "";
    });
  else
    for (const Connection *rank : welcomed())
      own.positions.emplace(rank->hello->rank, progress_.last(rank->hello->rank));
  survey_.begin(ask, std::move(own), relays_, clock_);
}

/// Answers ranks that look for this relay: with its address, or why it has not joined yet.
void Relay::answerFinders() {
  if (!finders_.isOpen())
    return;
  Status status;
  if (state_ == State::Joined ? !isEnding() || isJobOver_ : admission_ && refusal_)
    status = answerAll(finders_, where_);
  else if (!reason_.empty())
    status = answerAll(finders_, kNotYet + reason_);
  if (status.code() == StatusCode::Exhausted && placeOf_.empty() && !isEnding() &&
      !(admission_ && admission_->strangersThere() > 0)) // unidentified connections leave soon
    giveUp(status);
}

} // namespace shardc::launch
