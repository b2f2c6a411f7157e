// A relay's part in exchanges: it sends the parts of its children upwards in one message.
#include <algorithm>

#include "runtime/launch/Relay.h"

namespace shardc::launch {
namespace {

constexpr double kPartSeconds =
    1; ///< until parts of an exchange are sent although others are still missing
constexpr size_t kPartBytesMax = 16 << 20; ///< bytes of the parts in one message

} // namespace

size_t Relay::below(const std::vector<int> &members) const {
  return members.empty() ? placeOf_.size()
                         : static_cast<size_t>(std::ranges::count_if(
                               members, [this](int member) { return placeOf_.contains(member); }));
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
  for (const auto &[part, ranks] : parts.ranksOf) {
    for (int rank : ranks)
      pending.unsent.emplace_back(rank, part);
    pending.came += ranks.size();
  }
  if (pending.came < pending.expected)
    return;
  if (!answerHere(pending))
    sendParts(pending);
  pending_.erase(key);
}

/// Answers the exchange without the parent if all its members are below this relay.
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
  std::vector<int> places;
  for (int member : members)
    places.push_back(placeOf_.at(member));
  passDown({std::move(places), MessageKind::Gathered, all.take()});
  return true;
}

/// Sends the combined parts to the parent, in the name of one rank.
void Relay::sendParts(Pending &pending) {
  std::vector<std::pair<int, std::string>> &unsent = pending.unsent;
  const std::vector<int> &members = pending.exchange.members;
  hal::Peers::Fold fold = pending.exchange.fold;
  std::ranges::sort(unsent, {}, [&](const auto &each) {
    return members.empty() ? each.first : std::ranges::find(members, each.first) - members.begin();
  });
  if (fold == hal::Peers::Fold::First || fold == hal::Peers::Fold::Most) {
    auto of = std::ranges::find_if(unsent, [](const auto &each) { return !each.second.empty(); });
    size_t place = of == unsent.end() ? 0 : static_cast<size_t>(of - unsent.begin());
    std::vector<std::string> parts;
    for (auto &each : unsent)
      parts.push_back(std::exchange(each.second, ""));
    unsent[place].second = hal::Peers::folded(std::move(parts), fold).front();
  }
  for (size_t at = 0; at < unsent.size();) {
    RelayedParts parts = {pending.exchange, {}};
    for (size_t bytes = 0; at < unsent.size() && bytes < kPartBytesMax; ++at) {
      bytes += unsent[at].second.size();
      parts.ranksOf[std::move(unsent[at].second)].push_back(unsent[at].first);
    }
    above_.queue(MessageKind::GatherAll, packed(parts));
  }
  unsent.clear();
  pending.isSent = true;
}

/// Sends the parts of exchanges that have waited for a long time, so that rank 0's supervisor can
/// report which ranks hold them up.
void Relay::sendLateParts() {
  for (auto &[key, pending] : pending_)
    if (!pending.unsent.empty() && clock_ - pending.since > kPartSeconds)
      sendParts(pending);
}

} // namespace shardc::launch
