// The order of optimizer groups in a list. Group maps identify groups by number, so all writers of
// lists and maps must number them alike.
#pragma once

#include <string_view>

namespace shardc::checkpoint {

/// What a group's place depends on; groups are numbered from the least on. As in Megatron, where
/// groups are in the order of the first parameters that need them, embeddings in front: those with
/// the most weight decay come first, and those of experts last, since they belong to an optimizer
/// of their own.
struct GroupKey {
  bool isExpert = false;
  double weightDecayMult = 1, lrMult = 1;
  bool isDecoupled = false; ///< it has a learning rate of its own

  GroupKey(std::string_view name, double weightDecay, double lr, bool hasOwnRate = false)
      : isExpert(name.find(".mlp.experts.") != std::string_view::npos),
        weightDecayMult(weightDecay), lrMult(lr), isDecoupled(hasOwnRate) {}

  friend bool operator<(const GroupKey &a, const GroupKey &b) {
    if (a.isExpert != b.isExpert)
      return b.isExpert;
    if (a.weightDecayMult != b.weightDecayMult)
      return a.weightDecayMult > b.weightDecayMult;
    return a.lrMult != b.lrMult ? a.lrMult > b.lrMult : b.isDecoupled && !a.isDecoupled;
  }
};

} // namespace shardc::checkpoint
