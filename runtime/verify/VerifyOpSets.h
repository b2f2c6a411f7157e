// Sets of contributions to a gradient, for the check that each op contributes exactly once to a
// sum. A contribution is a value of a segment. Each set has a number, and equal sets have equal
// numbers. So marks that contain sets are small and compare in constant time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

/// The number of a set; equal numbers mean equal sets.
using OpSet = uint32_t;
/// The empty set.
inline constexpr OpSet kNoOps = 0;
/// The set of all contributions: the neutral element of common().
inline constexpr OpSet kAllOps = 1;

/// The sets of one role. Sets are only added, so numbers stay valid for the life of the object.
class OpSets {
public:
  OpSets(Inspection &inspection, const Role &role);

  /// The set with this value as its only contribution.
  OpSet of(uint32_t segment, ValueId value);
  /// Union and intersection. Results are cached, since walks repeat the same pairs.
  OpSet united(OpSet a, OpSet b);
  OpSet common(OpSet a, OpSet b);
  bool haveCommon(OpSet a, OpSet b) { return common(a, b) != kNoOps; }
  /// Calls use(segment, value) for each contribution of a set, segment by segment. Not for kAllOps.
  template <typename Use> void forEach(OpSet set, const Use &use) const {
    for (uint32_t number : members_[set]) {
      auto after = std::ranges::upper_bound(firstOf_, number);
      auto segment = static_cast<uint32_t>(after - firstOf_.begin() - 1);
      use(segment, ValueId(number - firstOf_[segment]));
    }
  }

private:
  using Members = std::vector<uint32_t>;             ///< sorted
  using Known = std::unordered_map<uint64_t, OpSet>; ///< results by pair of sets
  OpSet numberOf(Members members);
  template <typename Make> OpSet made(Known &known, OpSet a, OpSet b, const Make &make);

  Inspection &inspection_;
  std::vector<uint32_t>
      firstOf_;               ///< index of each segment's first value among all values of the role
  std::vector<OpSet> single_; ///< the set of each single value; kNoOps: not created yet
  std::vector<Members> members_; ///< of each set
  std::map<Members, OpSet> numbers_;
  Known united_, common_;
};

} // namespace shardc::plan::verifier
