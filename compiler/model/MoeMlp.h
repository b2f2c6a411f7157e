// A mixture of experts: a router chooses experts for each token, and the token's result is the
// weighted sum of their results. Experts are stacked parameters. Each token may also use a shared
// expert.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "compiler/model/DenseMlp.h"
#include "runtime/base/Router.h"

namespace shardc::model {

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
  double slotFactor = 0;     ///< maximum rows from one rank to another, likewise; 0: no limit
  bool dropsByPosition = false;
  bool isBySinkhorn = false; ///< in training, Sinkhorn's algorithm chooses experts evenly
};

struct MoeSettings {
  int64_t experts = 1;
  RouterSettings router;
  MlpSettings expert;                ///< settings of each expert
  std::optional<MlpSettings> shared; ///< the shared expert
  bool hasSharedGate = false; ///< whether the sigmoid of a logit scales the shared expert's result
  bool weighsInput = false;   ///< weights scale the experts' input rows, not their results
};

class MoeMlp : public Module {
public:
  explicit MoeMlp(const MoeSettings &settings) : s_(settings) {}
  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// Rows of tokens, grouped by expert. Ranks with other experts exchange them; ranks with other
  /// parts of the same experts gather them.
  struct Runs {
    int64_t rows;                ///< capacity in rows, for sent and for received rows
    plan::ValueId given, places; ///< counts and positions of the rows that this rank sends
    plan::ValueId taken;         ///< counts of the rows received from ranks with other experts
    plan::ValueId counts;        ///< counts of the rows that the experts of this rank process
    plan::ValueId chosen;        ///< f32[T,K]: weights of the experts of this rank's tokens
    plan::ValueId takenWeights;  ///< f32[.,1]: weights of received rows in their tokens' results
    plan::ValueId weights; ///< like takenWeights, for the rows that this rank's experts process
  };
  Runs route(Forward &to, plan::ValueId x) const;
  int64_t slotRows(const Forward &to, int64_t tokens, int64_t ranks) const;
  Runs groupsOf(Forward &to, plan::ValueId ids, plan::ValueId weights) const;
  plan::ValueId logits(Forward &to, plan::ValueId x) const;
  plan::ValueId gated(Forward &to, plan::ValueId x, plan::ValueId shared) const;
  std::vector<plan::ValueId> choose(Forward &to, plan::ValueId logits, plan::ValueId bias) const;
  plan::ValueId bestOf(Forward &to, plan::ValueId logits, plan::ValueId ids,
                       plan::ValueId bias) const;
  plan::Op chooser(Forward &to, plan::ValueId logits) const;
  void balance(Forward &to, plan::ValueId logits, plan::ValueId ids, int64_t layer) const;
  void addLoss(Forward &to, plan::ValueId logits, plan::ValueId load, RouterLoss kind,
               double scale) const;
  plan::ValueId load(Forward &to, plan::ValueId ids, int64_t parts, const char *what) const;
  plan::ValueId keptLoad(Forward &to, plan::ValueId ids, const char *cell, const char *what) const;
  /// Whether there is a balancing loss.
  bool isBalanced() const {
    return std::ranges::any_of(s_.router.losses, [](double weight) { return weight != 0; });
  }
  plan::ValueId dropped(Forward &to, const std::vector<plan::ValueId> &chosen) const;
  plan::ValueId exchanged(Forward &to, plan::ValueId rows, const char *what,
                          const Runs &runs) const;
  plan::ValueId gathered(Forward &to, plan::ValueId taken, const char *what,
                         const Runs &runs) const;
  plan::ValueId product(Forward &to, plan::ValueId x, const char *name, const std::string &what,
                        int64_t columns, const Runs &runs) const;
  /// The results of experts, and of the first factor of their last adapter, if there is one.
  /// Partial sums if ranks have parts of experts.
  struct Made {
    plan::ValueId rows, inner;
  };
  bool isAdapted(const char *linear) const;
  plan::ValueId adapterIn(Forward &to, plan::ValueId rows, const char *name, plan::ValueId factor,
                          plan::ValueId counts) const;
  plan::ValueId adapterOut(Forward &to, plan::ValueId made, plan::ValueId inner, const char *name,
                           plan::ValueId factor, plan::ValueId counts) const;
  plan::ValueId innerUp(Forward &to, plan::ValueId taken, const Runs &runs) const;
  plan::ValueId adaptedDown(Forward &to, plan::ValueId sum, plan::ValueId inner,
                            const Runs &runs) const;
  Made down(Forward &to, plan::ValueId rows, const std::string &what, const Runs &runs) const;
  static plan::ValueId biased(Forward &to, plan::ValueId x, plan::ValueId bias, const char *what,
                              plan::ValueId counts, plan::ValueId weights);
  plan::ValueId returned(Forward &to, const Made &made, const Runs &runs) const;
  Made apply(Forward &to, plan::ValueId rows, plan::ValueId inner, const Runs &runs) const;

  MoeSettings s_;
};

} // namespace shardc::model
