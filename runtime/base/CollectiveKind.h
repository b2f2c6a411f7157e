// The kinds of collectives, for plans, backends and predictions. All three switch over the kinds,
// so a kind that one of them lacks is a compile error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardc {

/// Members are the ranks of a group, in the order of their indices.
enum class CollectiveKind : uint8_t {
  AllGather,     ///< every member receives all shards, in rank order
  ReduceScatter, ///< every member receives its part of the sum over members
  AllReduce,     ///< every member receives the sum over members
  Send,          ///< one of two members sends a value to the other one
  Recv,          ///< the other side of a Send
  AllReduceMax,  ///< every member receives the element-wise maximum over members
  AllToAll,      ///< every member receives its part of every member's operand, in rank order
  Shift          ///< every member receives the operand of the member `by` positions before it
};
inline constexpr size_t kCollectiveKindCount = 8;

/// The word for messages and summaries.
constexpr std::string_view toString(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKindCount> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "send",
      "recv",       "all_reduce_max", "all_to_all", "shift"};
  return kNames[static_cast<size_t>(kind)];
}

/// Whether the collective sums the members' operands.
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

/// Whether it is one side of a transfer between two members, so that members issue different ops.
constexpr bool isPointToPoint(CollectiveKind kind) {
  return kind == CollectiveKind::Send || kind == CollectiveKind::Recv;
}

/// Whether it consists of sends and receives between several members.
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

/// The member `by` positions after the one with this index, modulo the group's size.
constexpr int64_t memberBehind(int64_t index, int64_t by, int64_t members) {
  return ((index + by) % members + members) % members;
}

} // namespace shardc
