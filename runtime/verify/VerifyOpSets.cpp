// Stores each set once, and caches intersections and unions by the numbers of the two sets.
#include "runtime/verify/VerifyOpSets.h"

#include <algorithm>
#include <iterator>

namespace shardc::plan::verifier {
namespace {

uint64_t keyOf(OpSet a, OpSet b) { return uint64_t{std::min(a, b)} << 32 | std::max(a, b); }

} // namespace

OpSets::OpSets(Inspection &inspection, const Role &role) : inspection_(inspection), members_(2) {
  uint32_t count = 0;
  for (const Segment &segment : role.segments) {
    firstOf_.push_back(count);
    count += static_cast<uint32_t>(segment.values.size());
  }
  single_.resize(count);
  numbers_.emplace(Members(), kNoOps);
}

OpSet OpSets::of(uint32_t segment, ValueId value) {
  uint32_t number = firstOf_[segment] + value;
  OpSet &set = single_[number];
  if (set == kNoOps) {
    set = static_cast<OpSet>(members_.size());
    members_.push_back({number});
  }
  return set;
}

/// The set that `make` computes from two sets; computed once for each pair.
template <typename Make> OpSet OpSets::made(Known &known, OpSet a, OpSet b, const Make &make) {
  auto [at, isNew] = known.try_emplace(keyOf(a, b));
  if (isNew) {
    Members members;
    make(members_[a], members_[b], std::back_inserter(members));
    at->second = numberOf(std::move(members));
  }
  return at->second;
}

OpSet OpSets::united(OpSet a, OpSet b) {
  if (a == b || b == kNoOps)
    return a;
  if (a == kNoOps || a == kAllOps || b == kAllOps)
    return a == kNoOps ? b : kAllOps;
  return made(united_, a, b, std::ranges::set_union);
}

OpSet OpSets::common(OpSet a, OpSet b) {
  if (a == b || b == kAllOps)
    return a;
  if (a == kAllOps || a == kNoOps || b == kNoOps)
    return a == kAllOps ? b : kNoOps;
  return made(common_, a, b, std::ranges::set_intersection);
}

/// A set of one value is found by the value, without a search.
OpSet OpSets::numberOf(Members members) {
  inspection_.spend(members.size());
  if (members.size() == 1 && single_[members[0]] != kNoOps)
    return single_[members[0]];
  auto [at, isNew] = numbers_.try_emplace(std::move(members), members_.size());
  if (isNew)
    members_.push_back(at->first);
  return at->second;
}

} // namespace shardc::plan::verifier
