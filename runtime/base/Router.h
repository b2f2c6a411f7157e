// Limits of a router's inputs. Kernels and the verifier read them.
#pragma once

#include <cstdint>

namespace shardc {

/// In the order of the words of `score` in Attrs.def.
enum RouterScore : int64_t { kRouterSoftmax, kRouterSigmoid, kRouterSqrtSoftplus };

/// The losses of routers, in the order in which a run keeps their sums.
enum RouterLoss : int64_t { kBalanceLoss, kSequenceLoss, kGlobalLoss, kZLoss, kRouterLosses };
/// Upstream's names of them.
inline constexpr const char *kRouterLossNames[] = {"load_balancing_loss", "seq_load_balancing_loss",
                                                   "global_load_balancing_loss", "z_loss"};

/// Positions of choices that have no row: the expert's row was dropped (kNoGroup), or its slot is
/// full (kOverCapacity). Results without rows of the second kind are NaN.
inline constexpr int32_t kNoGroup = -1, kOverCapacity = -2;

/// Added to the sum that scores are divided by.
inline constexpr double kRouterEps = 1e-20;

/// Sinkhorn's algorithm: added to the sums that factors are divided by; the mean change of factors
/// at which it ends, and the most steps that it takes. Upstream's takes as many as it needs, and
/// does not end if some logits are very far apart.
inline constexpr double kSinkhornEps = 1e-8, kSinkhornTolerance = 1e-4;
inline constexpr int kSinkhornStepsMax = 1000;

struct RouterChoice {
  int64_t experts, topk;
  int64_t groups, groupTopk; ///< 0: none

  int64_t groupSize() const { return experts / groups; }
  /// The scores of a group whose sum is the group's.
  int64_t summed() const { return topk / groupTopk; }

  /// Null, or what these numbers lack.
  const char *missing() const {
    if (topk < 1 || topk > experts)
      return "a topk from 1 to the number of experts";
    if ((groups == 0) != (groupTopk == 0))
      return "both expert_groups and group_topk, or neither";
    if (groups == 0)
      return nullptr;
    if (groups < 0 || experts % groups != 0)
      return "a number of experts that expert_groups divides";
    if (groupTopk < 0 || groupTopk > groups || topk % groupTopk != 0)
      return "a group_topk up to expert_groups that divides topk";
    if (summed() > groupSize())
      return "a topk / group_topk up to the experts of a group";
    return nullptr;
  }
};

} // namespace shardc
