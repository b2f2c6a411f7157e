// Constants and limits of routers, which kernels and the verifier share.
#pragma once

#include <cstdint>

namespace shardc {

/// Values in the order of the words of `score` in Attrs.def.
enum RouterScore : int64_t { kRouterSoftmax, kRouterSigmoid, kRouterSqrtSoftplus };

/// The losses of routers, in the order in which a run stores their sums.
enum RouterLoss : int64_t { kBalanceLoss, kSequenceLoss, kGlobalLoss, kZLoss, kRouterLosses };
/// Upstream's names of these losses.
inline constexpr const char *kRouterLossNames[] = {"load_balancing_loss", "seq_load_balancing_loss",
                                                   "global_load_balancing_loss", "z_loss"};

/// Positions of choices without a row: the expert's row was dropped (kNoGroup), or the slot is full
/// (kOverCapacity). Results for kOverCapacity are NaN.
inline constexpr int32_t kNoGroup = -1, kOverCapacity = -2;

/// Added to the sum by which scores are divided.
inline constexpr double kRouterEps = 1e-20;

/// Constants of Sinkhorn's algorithm: a number added to the sums by which factors are divided, the
/// mean change of factors at which it ends, and the maximum number of iterations. Upstream has no
/// maximum, and does not end if some logits are very far apart.
inline constexpr double kSinkhornEps = 1e-8, kSinkhornTolerance = 1e-4;
inline constexpr int kSinkhornStepsMax = 1000;

/// How a router chooses: topk of all experts, or topk of the experts in the groupTopk groups with
/// the highest scores. Groups are those of DeepSeek-V3 (arXiv 2412.19437).
struct RouterChoice {
  int64_t experts, topk;
  int64_t groups, groupTopk; ///< 0: no groups

  int64_t groupSize() const { return experts / groups; }
  /// The number of highest scores of a group whose sum is the group's score.
  int64_t summed() const { return topk / groupTopk; }

  /// The requirement that these numbers violate; null if there is none.
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
