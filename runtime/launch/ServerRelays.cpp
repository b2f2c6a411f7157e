// The rendezvous server's part for relays: lets them in, and takes what they say for what their
// ranks say.
#include <algorithm>
#include <map>

#include "runtime/base/ExitStatus.h"
#include "runtime/launch/RendezvousServer.h"

namespace shardc::launch {

size_t RendezvousServer::connections() const {
  size_t count = 0;
  for (const auto *list : {&ranks_, &idle_, &relays_})
    for (const std::unique_ptr<Connection> &each : *list)
      count += each && each->wire.isOpen();
  return count;
}

Traffic RendezvousServer::traffic() const {
  Traffic all;
  for (const auto *list : {&ranks_, &idle_, &relays_})
    for (const std::unique_ptr<Connection> &each : *list)
      if (each)
        all += each->wire.traffic();
  return all;
}

/// One for which there is no room goes to another relay, which may send it on.
void RendezvousServer::admitRelay(std::unique_ptr<Connection> relay) {
  if (relays_.size() < options_.fanOut) {
    relay->wire.setBytesMax(kFrameBytesMax);
    relay->queue(MessageKind::Admitted, "");
    relays_.push_back(std::move(relay));
    return serveRelay(*relays_.back()); // it may have said more already
  }
  const Connection &other = *relays_[nextRelay_++ % relays_.size()];
  relay->queue(
      MessageKind::Redirect,
      Packer().text(other.address).number(static_cast<uint64_t>(other.hello->relayPort)).take());
  admission_.seeOff(std::move(relay));
}

void RendezvousServer::serveRelay(Connection &relay) {
  bool isAlive = relay.wire.receive();
  while (std::optional<Message> message = relay.wire.next()) {
    relay.heardAt = clock_;
    if (!handleRelay(relay, *message))
      relay.wire.close();
    isAlive = isAlive && relay.wire.isOpen() && relay.wire.receive();
  }
  if (relay.wire.isOpen() && relay.wire.flush() && isAlive)
    return;
  relay.wire.close(); // and all ranks that it stood for are lost
  survey_.drop(relay);
  for (RankConnections *list : {&ranks_, &idle_})
    for (std::unique_ptr<Connection> &each : *list)
      if (each && each->via == &relay)
        list == &ranks_ ? lose(*each) : dropIdle(each);
}

/// The connection of a place, if it is one behind this relay.
std::unique_ptr<Connection> *RendezvousServer::behind(const Connection &relay, int64_t place) {
  auto at = static_cast<size_t>(place);
  int64_t rank = options_.elastic ? rankAt_[at] : place;
  std::unique_ptr<Connection> &known = rank >= 0 ? ranks_[static_cast<size_t>(rank)] : idle_[at];
  return known && known->via == &relay && known->isOpen() ? &known : nullptr;
}

/// False if it is no message of a relay.
bool RendezvousServer::handleRelay(Connection &relay, const Message &message) {
  switch (message.kind) {
  case MessageKind::Joined:
    return handleJoined(relay, message.body);
  case MessageKind::Gone:
    return handleGone(relay, message.body);
  case MessageKind::Up:
    return handleUp(relay, message.body);
  case MessageKind::GatherAll:
    return handleParts(relay, message.body);
  case MessageKind::Beat:
    relay.standing = Standing::unpack(message.body, places());
    return relay.standing.has_value();
  case MessageKind::Answer:
    return survey_.take(relay, message.body, places());
  default:
    return false;
  }
}

/// As if each had come itself.
bool RendezvousServer::handleJoined(Connection &relay, const std::string &body) {
  std::optional<RelayedHellos> all = RelayedHellos::unpack(body, places());
  for (size_t i = 0; all && i < all->hellos.size(); ++i) {
    auto rank = std::make_unique<Connection>();
    rank->via = &relay;
    rank->address = relay.address;
    rank->since = rank->heardAt = clock_;
    rank->hello = std::move(all->hellos[i]);
    rank->hello->job = options_.job;
    rank->place = rank->hello->rank;
    arrive(std::move(rank));
  }
  if (!admitted_.empty())
    relay.wire.queue(
        MessageKind::Down,
        RelayedMessage{std::exchange(admitted_, {}), MessageKind::Admitted, ""}.pack());
  beginIfAllAreThere();
  return all.has_value();
}

bool RendezvousServer::handleGone(Connection &relay, const std::string &body) {
  Unpacker in(body);
  std::optional<std::vector<int>> gone = unpackRanks(in, places());
  for (int place : gone.value_or(std::vector<int>()))
    if (std::unique_ptr<Connection> *known = behind(relay, place)) {
      (*known)->isCut = true;
      bool isIdle = options_.elastic && rankAt_[static_cast<size_t>(place)] < 0;
      isIdle ? dropIdle(*known) : lose(**known);
    }
  return gone && in.isComplete();
}

bool RendezvousServer::handleUp(Connection &relay, const std::string &body) {
  std::optional<RelayedMessage> up = RelayedMessage::unpack(body, places());
  if (!up || up->places.size() != 1)
    return false;
  std::unique_ptr<Connection> *known = behind(relay, up->places.front());
  bool isIdle = options_.elastic && rankAt_[static_cast<size_t>(up->places.front())] < 0;
  if (!known || isIdle)
    return true; // what has left meanwhile, or has no part in anything
  Connection &rank = **known;
  handle(rank, {up->kind, up->body});
  if (!rank.isOpen())
    lose(rank);
  return true;
}

bool RendezvousServer::handleParts(Connection &relay, const std::string &body) {
  std::optional<RelayedParts> parts = RelayedParts::unpack(body, options_.worldSize);
  auto isOwn = [&](int rank) { return ranks_[static_cast<size_t>(rank)]->via == &relay; };
  if (!parts || !isRunning_ || !std::ranges::all_of(parts->ranks, isOwn))
    return false;
  for (size_t i = 0; i < parts->ranks.size(); ++i) {
    GatherPart part = parts->exchange;
    part.bytes = std::move(parts->parts[i]);
    if (!exchange_.add(parts->ranks[i], std::move(part), clock_))
      return false;
  }
  endExchange(parts->ranks.back());
  return true;
}

/// By way of a relay once for all ranks behind it.
void RendezvousServer::sendTo(const std::vector<int> &ranks, MessageKind kind,
                              const std::string &body) {
  std::map<Connection *, std::vector<int>> behind;
  for (int rank : ranks) {
    Connection &to = *ranks_[static_cast<size_t>(rank)];
    if (!to.via)
      to.wire.queue(kind, body);
    else if (to.isOpen())
      behind[to.via].push_back(static_cast<int>(to.place));
  }
  for (auto &[relay, own] : behind)
    relay->wire.queue(MessageKind::Down, RelayedMessage{std::move(own), kind, body}.pack());
}

} // namespace shardc::launch
