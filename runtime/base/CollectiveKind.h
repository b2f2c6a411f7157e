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
  Recv,          ///< the other side of a send
  AllReduceMax,  ///< every member gets the largest of members, element by element
  AllToAll,      ///< every member gets its part of what each member has, in rank order
  Shift          ///< every member gets what the one so many positions before it has
};
inline constexpr size_t kCollectiveKindCount = 8;

constexpr std::string_view toString(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKindCount> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "send",
      "recv",       "all_reduce_max", "all_to_all", "shift"};
  return kNames[static_cast<size_t>(kind)];
}

/// Whether members add what they hold.
constexpr bool isSum(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
  case CollectiveKind::AllReduceMax:
  case CollectiveKind::AllToAll:
  case CollectiveKind::Shift:
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

/// Whether each member sends to several ones, or to one of several, and receives from them.
constexpr bool isBySends(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllToAll:
  case CollectiveKind::Shift:
    return true;
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllReduce:
  case CollectiveKind::AllReduceMax:
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return false;
  }
  return false;
}

/// The member that is `by` positions behind the one with this index, around the group.
constexpr int64_t memberBehind(int64_t index, int64_t by, int64_t members) {
  return ((index + by) % members + members) % members;
}

} // namespace shardc
