// Sets of contributions to a gradient, to check that each op contributes exactly once to a sum. A
// contribution is a value of a segment. A set is represented by a number, and equal numbers are
// equal sets, so marks that contain sets are small and compare in constant time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

using OpSet = uint32_t;
inline constexpr OpSet kNoOps = 0;
/// The set of all contributions, the neutral element of common(): the intersection of zero sets.
inline constexpr OpSet kAllOps = 1;

class OpSets {
public:
  OpSets(Inspection &inspection, const Role &role);

  /// The set with this value as its only contribution.
  OpSet of(uint32_t segment, ValueId value);
  /// Union and intersection. Results are cached, since walks ask for the same pairs again and
  /// again.
  OpSet united(OpSet a, OpSet b);
  OpSet common(OpSet a, OpSet b);
  bool haveCommon(OpSet a, OpSet b) { return common(a, b) != kNoOps; }
  /// Calls use(segment, value) for each contribution of a set other than kAllOps, in the order of
  /// segments.
  template <typename Use> void forEach(OpSet set, const Use &use) const {
    for (uint32_t number : members_[set]) {
      auto after = std::ranges::upper_bound(firstOf_, number);
      auto segment = static_cast<uint32_t>(after - firstOf_.begin() - 1);
      use(segment, ValueId(number - firstOf_[segment]));
    }
  }

private:
  using Members = std::vector<uint32_t>;             ///< in order
  using Known = std::unordered_map<uint64_t, OpSet>; ///< by two sets
  OpSet numberOf(Members members);
  template <typename Make> OpSet made(Known &known, OpSet a, OpSet b, const Make &make);

  Inspection &inspection_;
  std::vector<uint32_t>
      firstOf_;               ///< index of each segment's first value among all values of the role
  std::vector<OpSet> single_; ///< the set of each single value; kNoOps: not made yet
  std::vector<Members> members_; ///< of each set
  std::map<Members, OpSet> numbers_;
  Known united_, common_;
};

} // namespace shardc::plan::verifier
