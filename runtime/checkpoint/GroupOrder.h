// The order of optimizer groups in a list. Group maps identify groups by number, so all writers of
// lists and maps must number them alike.
#pragma once

namespace shardc::checkpoint {

/// The sort key of a parameter group; groups are numbered in ascending order. Megatron orders
/// groups by the first parameter that needs them, with embeddings first, so groups with the most
/// weight decay come first. Experts that are divided among ranks belong to a separate optimizer,
/// whose groups come last; other experts are in the groups of the other parameters.
struct GroupKey {
  bool isExpertParallel = false;
  double weightDecayMult = 1, lrMult = 1;
  bool isDecoupled = false; ///< it has a learning rate of its own
  /// Whether the group has parameters that an optimizer of matrices leaves to a second optimizer,
  /// whose groups follow.
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
