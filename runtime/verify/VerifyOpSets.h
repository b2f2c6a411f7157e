// Sets of the values of a role that ops contribute to sums. A set is a number: equal numbers are
// equal sets, so that marks with sets are small and fast to compare.
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
/// Of nothing that a set could lack: what all of no sets have in common.
inline constexpr OpSet kAllOps = 1;

class OpSets {
public:
  OpSets(Inspection &inspection, const Role &role);

  /// The set of one value alone.
  OpSet of(uint32_t segment, ValueId value);
  /// What is in one or both of the sets, and what is in both.
  OpSet united(OpSet a, OpSet b);
  OpSet common(OpSet a, OpSet b);
  bool haveCommon(OpSet a, OpSet b) { return common(a, b) != kNoOps; }
  /// Calls use(segment, value) for each value in a set other than kAllOps.
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
  std::vector<uint32_t> firstOf_; ///< number of each segment's first value
  std::vector<OpSet> single_;     ///< by the number of a value; kNoOps: none yet
  std::vector<Members> members_;  ///< of each set
  std::map<Members, OpSet> numbers_;
  Known united_, common_;
};

} // namespace shardc::plan::verifier
