#include "runtime/launch/RelayMessages.h"

#include <algorithm>

namespace shardc::launch {
namespace {

/// Texts by their place, those that are not empty.
void packTexts(Packer &packer, const std::vector<std::string> &texts) {
  packer.number(static_cast<uint64_t>(
      std::ranges::count_if(texts, [](const std::string &text) { return !text.empty(); })));
  for (size_t i = 0; i < texts.size(); ++i)
    if (!texts[i].empty())
      packer.number(i).text(texts[i]);
}

/// False if they are not in order.
bool unpackTexts(Unpacker &in, std::vector<std::string> &texts) {
  uint64_t next = 0;
  for (uint64_t left = in.bounded(texts.size()); left > 0 && !in.hasFailed(); --left) {
    uint64_t at = in.number();
    if (in.hasFailed() || at < next || at >= texts.size())
      return false;
    texts[at] = in.text();
    next = at + 1;
  }
  return !in.hasFailed();
}

} // namespace

std::string RelayedMessage::pack() const {
  Packer packer;
  packRanks(packer, ranks);
  return packer.number(static_cast<uint64_t>(kind)).text(body).take();
}

std::optional<RelayedMessage> RelayedMessage::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  RelayedMessage message;
  std::optional<std::vector<int>> list = unpackRanks(in, ranks);
  message.kind = static_cast<MessageKind>(in.bounded(static_cast<uint64_t>(MessageKind::kLast)));
  message.body = in.text();
  if (!list || list->empty() || !in.isComplete() || !hasCode(message.kind))
    return std::nullopt;
  message.ranks = std::move(*list);
  return message;
}

std::string RelayedParts::pack() const {
  Packer packer;
  packer.text(exchange.pack());
  packRanks(packer, ranks);
  packTexts(packer, parts);
  return packer.take();
}

std::optional<RelayedParts> RelayedParts::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  std::optional<GatherPart> exchange = GatherPart::unpack(in.text(), ranks);
  std::optional<std::vector<int>> list = unpackRanks(in, ranks);
  if (!exchange || !list || list->empty())
    return std::nullopt;
  RelayedParts all = {std::move(*exchange), std::move(*list), {}};
  all.parts.resize(all.ranks.size());
  if (!unpackTexts(in, all.parts) || !in.isComplete())
    return std::nullopt;
  return all;
}

std::string RelayedBeats::pack() const {
  Packer packer;
  packRanks(packer, ranks);
  packTexts(packer, positions);
  return packer.take();
}

std::optional<RelayedBeats> RelayedBeats::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  std::optional<std::vector<int>> list = unpackRanks(in, ranks);
  if (!list)
    return std::nullopt;
  RelayedBeats beats = {std::move(*list), {}};
  beats.positions.resize(beats.ranks.size());
  if (!unpackTexts(in, beats.positions) || !in.isComplete())
    return std::nullopt;
  return beats;
}

} // namespace shardc::launch
