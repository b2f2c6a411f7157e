// The rendezvous server's part for relays: it admits them, and treats their messages as messages of
// their ranks.
#include <algorithm>
#include <map>

#include "runtime/base/ExitStatus.h"
#include "runtime/launch/RendezvousServer.h"

namespace shardc::launch {

size_t RendezvousServer::connections() const {
  auto isOpen = [](const Connection *each) { return each->wire.isOpen(); };
  return static_cast<size_t>(std::ranges::count_if(everyone(/*withRelays=*/true), isOpen));
}

Traffic RendezvousServer::traffic() const {
  Traffic all;
  for (const Connection *each : everyone(/*withRelays=*/true))
    all += each->wire.traffic();
  return all;
}

void RendezvousServer::serveRelay(Connection &relay) {
  bool isAlive = relay.wire.serve([&](const Message &message) {
    relay.heardAt = clock_;
    if (!handleRelay(relay, message))
      relay.wire.close();
  });
  if (isAlive)
    return;
  relay.wire.close(); // all ranks behind it are lost as well
  survey_.drop(relay);
  for (Connections *list : {&ranks_, &idle_})
    for (std::unique_ptr<Connection> &each : *list)
      if (each && each->via == &relay)
        list == &ranks_ ? lose(*each) : dropIdle(each);
}

/// Returns the connection of a place if the place is behind this relay; otherwise null.
std::unique_ptr<Connection> *RendezvousServer::behind(const Connection &relay, int64_t place) {
  auto at = static_cast<size_t>(place);
  int64_t rank = options_.elastic ? rankAt_[at] : place;
  std::unique_ptr<Connection> &known = rank >= 0 ? ranks_[static_cast<size_t>(rank)] : idle_[at];
  return known && known->via == &relay && known->isOpen() ? &known : nullptr;
}

/// Returns false if the message is not one that relays send.
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
    relay.standing = unpacked<Standing>(message.body, places());
    return relay.standing.has_value();
  case MessageKind::Answer:
    return survey_.take(relay, message.body, places());
  default:
    return false;
  }
}

/// Handles the ranks behind a relay as if each had connected directly.
bool RendezvousServer::handleJoined(Connection &relay, const std::string &body) {
  std::optional<RelayedHellos> all = unpacked<RelayedHellos>(body, places());
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
    relay.wire.queue(MessageKind::Down, packed(RelayedMessage{std::exchange(admitted_, {}),
                                                              MessageKind::Admitted, ""}));
  beginIfAllAreThere();
  return all.has_value();
}

/// A relay reports ranks whose connections to it have ended. False if the message is malformed.
bool RendezvousServer::handleGone(Connection &relay, const std::string &body) {
  Unpacker in(body);
  std::vector<int> gone;
  in.ranks(gone, places());
  for (int place : gone)
    if (std::unique_ptr<Connection> *known = behind(relay, place)) {
      (*known)->isCut = true;
      bool isIdle = options_.elastic && rankAt_[static_cast<size_t>(place)] < 0;
      isIdle ? dropIdle(*known) : lose(**known);
    }
  return in.isComplete();
}

bool RendezvousServer::handleUp(Connection &relay, const std::string &body) {
  std::optional<RelayedMessage> up = unpacked<RelayedMessage>(body, places());
  if (!up || up->places.size() != 1)
    return false;
  std::unique_ptr<Connection> *known = behind(relay, up->places.front());
  bool isIdle = options_.elastic && rankAt_[static_cast<size_t>(up->places.front())] < 0;
  if (!known || isIdle)
    return true; // it has left in the meantime, or has no part in the job
  Connection &rank = **known;
  handle(rank, {up->kind, up->body});
  if (!rank.isOpen())
    lose(rank);
  return true;
}

/// A relay sends equal parts of several ranks once. It may only speak for ranks that joined through
/// it.
bool RendezvousServer::handleParts(Connection &relay, const std::string &body) {
  std::optional<RelayedParts> parts = unpacked<RelayedParts>(body, options_.worldSize);
  if (!parts || !isRunning_)
    return false;
  for (const auto &[bytes, ranks] : parts->ranksOf)
    for (int rank : ranks) {
      GatherPart part = parts->exchange;
      part.bytes = bytes;
      bool isOwn = ranks_[static_cast<size_t>(rank)]->via == &relay;
      if (!isOwn || !exchange_.add(rank, std::move(part), clock_))
        return false;
    }
  endExchange(parts->ranksOf.begin()->second.front());
  return true;
}

/// Sends a message to ranks. A relay receives it once for all ranks behind it.
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
    relay->wire.queue(MessageKind::Down, packed(RelayedMessage{std::move(own), kind, body}));
}

} // namespace shardc::launch
