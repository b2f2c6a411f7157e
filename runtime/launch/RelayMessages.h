// What a relay (Relay.h) and what is above it say to each other about ranks below it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/Exchange.h"

namespace shardc::launch {

/// A message of a rank, or for ranks, as it goes by way of relays. Ranks are meant by their places.
struct RelayedMessage {
  std::vector<int> places; ///< one where it goes up
  MessageKind kind = MessageKind::Progress;
  std::string body;

  std::string pack() const;
  static std::optional<RelayedMessage> unpack(std::string_view body, int64_t places);
};

/// Ranks that begin, as the body of a relayed Welcome.
struct RelayedWelcome {
  std::vector<int> ranks; ///< of the message's places
  Welcome welcome;        ///< of each, but for its rank

  std::string pack() const;
  static std::optional<RelayedWelcome> unpack(std::string_view body, int64_t ranks);
};

/// Who has come. Job and version are the relay's.
struct RelayedHellos {
  std::vector<Hello> hellos;

  std::string pack() const;
  static std::optional<RelayedHellos> unpack(std::string_view body, int64_t places);
};

/// The parts of several ranks in one exchange.
struct RelayedParts {
  GatherPart exchange;            ///< without bytes
  std::vector<int> ranks;         ///< that have come
  std::vector<std::string> parts; ///< of each; folded where that needs only one

  std::string pack() const;
  static std::optional<RelayedParts> unpack(std::string_view body, int64_t ranks);
};

/// Where ranks are.
struct RankPositions {
  std::vector<int> ranks;
  std::vector<RankProgress> positions; ///< of each

  std::string pack() const;
  static std::optional<RankPositions> unpack(std::string_view body, int64_t ranks);
};

} // namespace shardc::launch
