// What a relay (Relay.h) and what is above it say to each other about ranks below it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/Exchange.h"

namespace shardc::launch {

/// A message of a rank, or for ranks, as it goes by way of relays.
struct RelayedMessage {
  std::vector<int> ranks; ///< one where it goes up
  MessageKind kind = MessageKind::Progress;
  std::string body;

  std::string pack() const;
  static std::optional<RelayedMessage> unpack(std::string_view body, int64_t ranks);
};

/// The parts of several ranks in one exchange.
struct RelayedParts {
  GatherPart exchange;            ///< without bytes
  std::vector<int> ranks;         ///< that have come
  std::vector<std::string> parts; ///< of each; of a Fold::First only the first that is not empty

  std::string pack() const;
  static std::optional<RelayedParts> unpack(std::string_view body, int64_t ranks);
};

/// Ranks that have been heard of, and what they said of their progress where that is new.
struct RelayedBeats {
  std::vector<int> ranks;
  std::vector<std::string> positions; ///< RankProgress of each; empty: as before

  std::string pack() const;
  static std::optional<RelayedBeats> unpack(std::string_view body, int64_t ranks);
};

} // namespace shardc::launch
