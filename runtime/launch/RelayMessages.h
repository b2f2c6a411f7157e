// Messages between a relay (Relay.h) and the relay or supervisor above it, about ranks below it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/launch/Exchange.h"

namespace shardc::launch {

/// A message from a rank, or to ranks, that passes through relays. Ranks are identified by their
/// places.
struct RelayedMessage {
  std::vector<int> places; ///< exactly one on the way up
  MessageKind kind = MessageKind::Progress;
  std::string body;

  static void fields(auto &io, auto &it, int64_t places) {
    io.ranks(it.places, places);
    io.field(it.kind, MessageKind::kLast);
    io.field(it.body);
    io.check(!it.places.empty() && (hasCode(it.kind) || it.kind == MessageKind::Refused));
  }
};

/// The ranks that begin, as the body of a relayed Welcome.
struct RelayedWelcome {
  std::vector<int> ranks; ///< ranks of the message's places
  Welcome welcome;        ///< the welcome of each rank, apart from its number

  static void fields(auto &io, auto &it, int64_t ranks) {
    io.ranks(it.ranks, ranks);
    io.nested(it.welcome, ranks);
  }
};

/// The hellos of ranks that have arrived. Their job and protocol version are those of the relay.
struct RelayedHellos {
  std::vector<Hello> hellos;

  /// Places of a machine have much in common: a text is written only if it differs from that of the
  /// previous hello.
  static void fields(auto &io, auto &it, int64_t places) {
    Hello before;
    io.list(it.hellos, places, [&](auto &hello) {
      io.field(hello.rank, kRanksMax);
      io.field(hello.worldSize, kRanksMax);
      io.field(hello.planHash, UINT64_MAX);
      io.field(hello.pid, INT32_MAX);
      for (std::string Hello::*text : {&Hello::machine, &Hello::host, &Hello::gpu}) {
        io.like(hello.*text, before.*text);
        before.*text = hello.*text;
      }
      io.field(hello.problems);
    });
  }
};

/// The parts of several ranks in one exchange. A part that many ranks contributed is written once.
struct RelayedParts {
  GatherPart exchange; ///< without the contributed bytes
  /// For each distinct part, the ranks that contributed it; combined if the exchange needs only
  /// one. No rank occurs twice.
  std::map<std::string, std::vector<int>> ranksOf;

  static void fields(auto &io, auto &it, int64_t ranks) {
    io.nested(it.exchange, ranks);
    std::vector<bool> isThere(static_cast<size_t>(ranks));
    io.list(it.ranksOf, ranks, [&](auto &part) {
      io.field(part.first);
      io.ranks(part.second, ranks, isThere);
      io.check(!part.second.empty());
    });
    io.check(!it.ranksOf.empty());
  }
};

} // namespace shardc::launch
