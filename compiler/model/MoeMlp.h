// A mixture of experts: a router chooses experts for each token, and the token's result is the
// weighted sum of their results. Experts are stacked parameters. Each token may also use a shared
// expert.
#pragma once

#include <array>
#include <optional>

#include "compiler/model/DenseMlp.h"
#include "runtime/base/Router.h"

namespace shardc::model {

/// How experts are chosen and weighted, and what balances them.
struct RouterSettings {
  int64_t topk = 1;      ///< number of experts per token
  int64_t groups = 0;    ///< number of equal groups of experts; 0: no groups
  int64_t groupTopk = 0; ///< number of groups from which a token may choose experts
  RouterScore score = kRouterSoftmax;
  bool preSoftmax = false; ///< the softmax is over all experts, rather than the chosen ones
  double scale = 1;        ///< factor on the weights of experts
  double jitter = 0;       ///< maximum deviation from 1 of the random factors on its input
  bool isFp32 = false;     ///< whether its product writes fp32, whatever the activations' type
  /// Weights of the balancing losses, by enum RouterLoss; 0: no loss.
  std::array<double, kRouterLosses> losses{};
  /// The share of the sum over ranks, microbatches and layers that a run reports as the loss.
  double reportedShare = 1;
  int64_t dataRanks = 1;     ///< number of ranks with other samples
  double capacityFactor = 0; ///< limit on an expert's rows, relative to an even share; 0: none
  bool dropsByPosition = false;
  bool isBySinkhorn = false; ///< in training, Sinkhorn's algorithm chooses experts evenly
};

/// One layer of experts: their number over all ranks, the router, and the sizes of each expert.
struct MoeSettings {
  int64_t experts = 1;
  RouterSettings router;
  MlpSettings expert;                ///< settings of each expert
  std::optional<MlpSettings> shared; ///< the shared expert
  bool hasSharedGate = false; ///< whether the sigmoid of a logit scales the shared expert's result
  bool weighsInput = false;   ///< weights scale the experts' input rows, not their results
};

/// x and the result are [B,S,hidden]; experts see rows of tokens, each once for every expert that
/// it chose.
class MoeMlp : public Module {
public:
  explicit MoeMlp(const MoeSettings &settings) : s_(settings) {}
  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  MoeSettings s_;
};

} // namespace shardc::model
