// The order of optimizer groups. Group maps identify groups by number, so everything that writes
// lists or maps of groups must number them in the same way.
#pragma once

namespace shardc::checkpoint {

/// The sort key of a parameter group; groups are numbered in ascending order. Megatron orders
/// groups by the first parameter that needs them, and embeddings come first, so groups with the
/// most weight decay come first. Experts that are divided among ranks belong to a separate
/// optimizer, whose groups come last. Other experts are in the same groups as other parameters.
struct GroupKey {
  bool isExpertParallel = false;
  double weightDecayMult = 1, lrMult = 1;
  bool isDecoupled = false; ///< whether it has a learning rate of its own
  /// Whether the group has parameters that a matrix optimizer leaves to a second optimizer. Groups
  /// of the second optimizer come later.
  bool isOfRest = false;

  friend bool operator<(const GroupKey &a, const GroupKey &b) {
    if (a.isOfRest != b.isOfRest)
      return b.isOfRest;
    if (a.isExpertParallel != b.isExpertParallel)
      return b.isExpertParallel;
    if (a.weightDecayMult != b.weightDecayMult)
      return a.weightDecayMult > b.weightDecayMult;
    return a.lrMult != b.lrMult ? a.lrMult > b.lrMult : b.isDecoupled && !a.isDecoupled;
  }
};

} // namespace shardc::checkpoint
