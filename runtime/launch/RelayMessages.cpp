#include "runtime/launch/RelayMessages.h"

#include <map>

namespace shardc::launch {
namespace {

constexpr std::string Hello::*kTexts[] = {&Hello::machine, &Hello::host, &Hello::gpu};

} // namespace

std::string RelayedMessage::pack() const {
  Packer packer;
  packRanks(packer, places);
  return packer.number(static_cast<uint64_t>(kind)).text(body).take();
}

std::optional<RelayedMessage> RelayedMessage::unpack(std::string_view body, int64_t places) {
  Unpacker in(body);
  RelayedMessage message;
  std::optional<std::vector<int>> list = unpackRanks(in, places);
  message.kind = static_cast<MessageKind>(in.bounded(static_cast<uint64_t>(MessageKind::kLast)));
  message.body = in.text();
  bool isKnown = hasCode(message.kind) || message.kind == MessageKind::Refused;
  if (!list || list->empty() || !in.isComplete() || !isKnown)
    return std::nullopt;
  message.places = std::move(*list);
  return message;
}

std::string RelayedWelcome::pack() const {
  Packer packer;
  packRanks(packer, ranks);
  return packer.text(welcome.pack()).take();
}

std::optional<RelayedWelcome> RelayedWelcome::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  std::optional<std::vector<int>> list = unpackRanks(in, ranks);
  std::optional<Welcome> welcome = Welcome::unpack(in.text());
  if (!list || !welcome || !in.isComplete())
    return std::nullopt;
  return RelayedWelcome{std::move(*list), *welcome};
}

/// Those of a machine have much in common: a text is written where it is another one than before.
std::string RelayedHellos::pack() const {
  Packer packer;
  packer.number(hellos.size());
  const Hello *before = nullptr;
  for (const Hello &hello : hellos) {
    packer.number(static_cast<uint64_t>(hello.rank))
        .number(static_cast<uint64_t>(hello.worldSize))
        .number(hello.planHash)
        .number(static_cast<uint64_t>(hello.pid));
    for (std::string Hello::*text : kTexts) {
      bool isOther = !before || hello.*text != before->*text;
      packer.number(isOther);
      if (isOther)
        packer.text(hello.*text);
    }
    packer.reports(hello.problems);
    before = &hello;
  }
  return packer.take();
}

std::optional<RelayedHellos> RelayedHellos::unpack(std::string_view body, int64_t places) {
  Unpacker in(body);
  RelayedHellos all;
  for (uint64_t left = in.bounded(static_cast<uint64_t>(places)); left > 0; --left) {
    Hello hello = all.hellos.empty() ? Hello() : all.hellos.back();
    hello.rank = static_cast<int64_t>(in.bounded(static_cast<uint64_t>(kRanksMax)));
    hello.worldSize = static_cast<int64_t>(in.bounded(static_cast<uint64_t>(kRanksMax)));
    hello.planHash = in.number();
    hello.pid = static_cast<int64_t>(in.bounded(INT32_MAX));
    for (std::string Hello::*text : kTexts)
      if (in.bounded(1) != 0)
        hello.*text = in.text();
    hello.problems = in.reports();
    if (in.hasFailed())
      return std::nullopt;
    all.hellos.push_back(std::move(hello));
  }
  return in.isComplete() ? std::optional(std::move(all)) : std::nullopt;
}

/// A part that many have given is written once.
std::string RelayedParts::pack() const {
  std::map<std::string_view, std::vector<int>> byPart;
  for (size_t i = 0; i < ranks.size(); ++i)
    byPart[parts[i]].push_back(ranks[i]);
  Packer packer;
  packer.text(exchange.pack()).number(byPart.size());
  for (const auto &[part, of] : byPart) {
    packer.text(part);
    packRanks(packer, of);
  }
  return packer.take();
}

std::optional<RelayedParts> RelayedParts::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  std::optional<GatherPart> exchange = GatherPart::unpack(in.text(), ranks);
  if (!exchange)
    return std::nullopt;
  RelayedParts all = {std::move(*exchange), {}, {}};
  std::vector<bool> isThere(static_cast<size_t>(ranks));
  for (uint64_t left = in.bounded(static_cast<uint64_t>(ranks)); left > 0; --left) {
    std::string part = in.text();
    std::optional<std::vector<int>> of = unpackRanks(in, ranks);
    if (!of || of->empty())
      return std::nullopt;
    for (int rank : *of) {
      if (isThere[static_cast<size_t>(rank)])
        return std::nullopt;
      isThere[static_cast<size_t>(rank)] = true;
      all.ranks.push_back(rank);
      all.parts.push_back(part);
    }
  }
  return in.isComplete() && !all.ranks.empty() ? std::optional(std::move(all)) : std::nullopt;
}

std::string RankPositions::pack() const {
  Packer packer;
  packRanks(packer, ranks);
  for (const RankProgress &position : positions)
    packer.text(position.pack());
  return packer.take();
}

std::optional<RankPositions> RankPositions::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  std::optional<std::vector<int>> list = unpackRanks(in, ranks);
  if (!list)
    return std::nullopt;
  RankPositions all = {std::move(*list), {}};
  for (size_t i = 0; i < all.ranks.size(); ++i) {
    std::optional<RankProgress> position = RankProgress::unpack(in.text());
    if (!position)
      return std::nullopt;
    all.positions.push_back(std::move(*position));
  }
  return in.isComplete() ? std::optional(std::move(all)) : std::nullopt;
}

} // namespace shardc::launch
