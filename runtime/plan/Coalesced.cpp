// Finds adjacent gathers that may be issued as one batch: they are alike, and none writes bytes
// that another one uses.
#include "runtime/plan/Execution.h"

#include <algorithm>

namespace shardc::plan {
namespace {

bool isGather(const Plan &plan, const Op &op) {
  return op.kind == OpKind::AllGather && op.unit >= 0 && plan.transportOf(op) == Transport::Nccl;
}

bool isLike(const Op &a, const Op &b) {
  return a.unit == b.unit && a.group == b.group && a.channel == b.channel && a.stream == b.stream &&
         a.pred == b.pred;
}

/// The bytes that a value may occupy on some rank.
struct Extent {
  Arena arena;
  int64_t begin, end;

  static Extent of(const Plan &plan, const Value &value) {
    const Place &place = value.place;
    int64_t last = place.offset + place.coef * (plan.groupSize(place.group) - 1);
    auto [begin, end] = std::minmax(place.offset, last);
    return {place.arena, begin, end + value.type.bytes()};
  }
  bool overlaps(const Extent &other) const {
    return arena == other.arena && begin < other.end && other.begin < end;
  }
};

/// True if one of the ops writes bytes that the other one reads or writes. A gather may read its
/// own result.
bool conflict(const Plan &plan, const Segment &segment, const Op &a, const Op &b) {
  if (plan.level < Level::Placed)
    return false;
  auto extentOf = [&](ValueId value) { return Extent::of(plan, segment.values[value]); };
  Extent fromA = extentOf(a.operands[0]), toA = extentOf(a.results[0]);
  Extent fromB = extentOf(b.operands[0]), toB = extentOf(b.results[0]);
  return toA.overlaps(toB) || toA.overlaps(fromB) || fromA.overlaps(toB);
}

} // namespace

std::vector<std::vector<uint32_t>> issuedTogether(const Plan &plan, const Segment &segment) {
  std::vector<std::vector<uint32_t>> together(segment.ops.size());
  uint32_t first = kNone; // the gather whose batch the next op may join
  auto mayJoin = [&](const Op &op) {
    return first != kNone && isLike(op, segment.ops[first]) &&
           std::ranges::none_of(together[first], [&](uint32_t other) {
             return conflict(plan, segment, op, segment.ops[other]);
           });
  };
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    if (!isGather(plan, op)) {
      together[i].push_back(i);
      if (opInfo(op).traits != OpTraits::Alias)
        first = kNone;
      continue;
    }
    if (!mayJoin(op))
      first = i;
    together[first].push_back(i);
  }
  return together;
}

} // namespace shardc::plan
