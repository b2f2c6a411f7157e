// The kinds of collectives. Plans, backends and predictions share them, so a kind that one of them
// does not know does not compile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardc {

enum class CollectiveKind : uint8_t {
  AllGather,     ///< every member gets the shards of all, in rank order
  ReduceScatter, ///< every member gets its part of the sum over members
  AllReduce,     ///< every member gets the sum over members
  Send,          ///< one of two members gives a value to the other, which receives
  Recv           ///< the other side of a send
};
inline constexpr size_t kCollectiveKindCount = 5;

constexpr std::string_view toString(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKindCount> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "send", "recv"};
  return kNames[static_cast<size_t>(kind)];
}

/// Whether members add what they hold.
constexpr bool isSum(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return false;
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllReduce:
    return true;
  }
  return false;
}

/// Whether it is one side of a transfer between two members, and not the same op on all.
constexpr bool isPointToPoint(CollectiveKind kind) {
  return kind == CollectiveKind::Send || kind == CollectiveKind::Recv;
}

} // namespace shardc
