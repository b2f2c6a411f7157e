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
  if (options_.elastic) { // whose ranks have connections of their own
    admission_.refuse(*relay, Refusal::Complete);
    return admission_.seeOff(std::move(relay));
  }
  if (relays_.size() < options_.fanOut) {
    relay->wire.setBytesMax(kFrameBytesMax);
    relay->wire.queue(MessageKind::Admitted, "");
    relays_.push_back(std::move(relay));
    return serveRelay(*relays_.back()); // it may have said more already
  }
  const Connection &other = *relays_[nextRelay_++ % relays_.size()];
  relay->wire.queue(
      MessageKind::Redirect,
      Packer().text(other.address).number(static_cast<uint64_t>(other.hello->relayPort)).take());
  relay->wire.flush();
  admission_.seeOff(std::move(relay));
}

/// As if it had come itself.
void RendezvousServer::admitBehind(Connection &relay, const std::string &text) {
  std::optional<Hello> hello = Hello::unpack(text);
  if (!hello || hello->job != options_.job || hello->version != kProtocolVersion)
    return relay.wire.close();
  std::vector<Report> faults = admission_.findFaults(*hello, ranks_);
  if (isRunning_ || !faults.empty()) {
    if (!isRunning_ && !isEnding_)
      fail({-1, StatusCode::InvalidInput, kInputStatus, std::move(faults)});
    return; // it hears how the job ends
  }
  auto rank = std::make_unique<Connection>();
  rank->via = &relay;
  rank->address = relay.address;
  rank->since = rank->heardAt = clock_;
  std::unique_ptr<Connection> &place = ranks_[static_cast<size_t>(hello->rank)];
  rank->hello = std::move(hello);
  place = std::move(rank);
  if (++joined_ == options_.worldSize)
    welcomeAll();
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
  for (const std::unique_ptr<Connection> &rank : ranks_)
    if (rank && rank->via == &relay)
      lose(*rank);
}

/// False if it is no message of a relay about its own ranks.
bool RendezvousServer::handleRelay(Connection &relay, const Message &message) {
  auto isOwn = [&](int rank) {
    const std::unique_ptr<Connection> &known = ranks_[static_cast<size_t>(rank)];
    return known && known->via == &relay;
  };
  Unpacker in(message.body);
  switch (message.kind) {
  case MessageKind::Joined:
    for (auto left = in.bounded(static_cast<uint64_t>(options_.worldSize));
         left > 0 && !in.hasFailed() && relay.wire.isOpen(); --left)
      admitBehind(relay, in.text());
    return in.isComplete();
  case MessageKind::Gone: {
    std::optional<std::vector<int>> gone = unpackRanks(in, options_.worldSize);
    for (int rank : gone.value_or(std::vector<int>()))
      if (isOwn(rank))
        lose(*ranks_[static_cast<size_t>(rank)]);
    return gone.has_value();
  }
  case MessageKind::Up: {
    auto up = RelayedMessage::unpack(message.body, options_.worldSize);
    if (!up || !isOwn(up->ranks.front()))
      return false;
    Connection &rank = *ranks_[static_cast<size_t>(up->ranks.front())];
    rank.heardAt = clock_;
    handle(rank, {up->kind, up->body});
    if (!rank.isOpen())
      lose(rank);
    return true;
  }
  case MessageKind::Beats: {
    auto beats = RelayedBeats::unpack(message.body, options_.worldSize);
    for (size_t i = 0; beats && i < beats->ranks.size(); ++i) {
      if (!isOwn(beats->ranks[i]))
        return false;
      Connection &rank = *ranks_[static_cast<size_t>(beats->ranks[i])];
      rank.heardAt = clock_;
      if (!beats->positions[i].empty())
        handle(rank, {MessageKind::Progress, beats->positions[i]});
    }
    return beats.has_value();
  }
  case MessageKind::GatherAll: {
    auto parts = RelayedParts::unpack(message.body, options_.worldSize);
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
  default:
    return false;
  }
}

/// By way of a relay once for all ranks behind it.
void RendezvousServer::sendTo(const std::vector<int> &ranks, MessageKind kind,
                              const std::string &body) {
  std::map<Connection *, std::vector<int>> behind;
  for (int rank : ranks) {
    Connection &to = *ranks_[static_cast<size_t>(rank)];
    if (to.via)
      behind[to.via].push_back(rank);
    else
      to.wire.queue(kind, body);
  }
  for (auto &[relay, own] : behind)
    relay->wire.queue(MessageKind::Down, RelayedMessage{std::move(own), kind, body}.pack());
}

} // namespace shardc::launch
