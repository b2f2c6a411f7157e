// The kinds of collectives, for plans, backends and predictions. Where these switch over the kinds,
// a kind that one of them lacks is a compile error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
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

/// What distinguishes a kind.
struct CollectiveTraits {
  std::string_view name; ///< the word for messages and summaries
  /// Whether operand and result have the parts of all members; otherwise they have one part, or the
  /// kind has no parts.
  bool isWholeIn, isWholeOut;
  bool isSum;     ///< sums the members' operands
  bool isBySends; ///< consists of sends and receives between several members
};

constexpr CollectiveTraits traitsOf(CollectiveKind kind) {
  constexpr CollectiveTraits kRows[] = {
      {"all_gather", false, true, false, false}, {"reduce_scatter", true, false, true, false},
      {"all_reduce", false, false, true, false}, {"send", false, false, false, false},
      {"recv", false, false, false, false},      {"all_reduce_max", false, false, false, false},
      {"all_to_all", true, true, false, true},   {"shift", false, false, false, true}};
  static_assert(std::size(kRows) == kCollectiveKindCount);
  return kRows[static_cast<size_t>(kind)];
}

constexpr std::string_view toString(CollectiveKind kind) { return traitsOf(kind).name; }
constexpr bool isSum(CollectiveKind kind) { return traitsOf(kind).isSum; }
constexpr bool isBySends(CollectiveKind kind) { return traitsOf(kind).isBySends; }

/// Whether operand or result has the parts of all members.
constexpr bool hasParts(CollectiveKind kind) {
  return traitsOf(kind).isWholeIn || traitsOf(kind).isWholeOut;
}

/// Whether it is one side of a transfer between two members, so that members issue different ops.
constexpr bool isPointToPoint(CollectiveKind kind) {
  return kind == CollectiveKind::Send || kind == CollectiveKind::Recv;
}

/// The member `by` positions after the one with this index, modulo the group's size.
constexpr int64_t memberBehind(int64_t index, int64_t by, int64_t members) {
  return ((index + by) % members + members) % members;
}

} // namespace shardc
