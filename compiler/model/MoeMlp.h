// A mixture of experts: a router chooses experts for each token, and the token's result is the sum
// of theirs. Experts are stacked parameters. Each token may also go through a shared expert.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "compiler/model/DenseMlp.h"
#include "runtime/base/Router.h"

namespace shardc::model {

struct RouterSettings {
  int64_t topk = 1;      ///< experts that a token is given to
  int64_t groups = 0;    ///< equal groups of experts; 0: none
  int64_t groupTopk = 0; ///< groups that a token may choose experts of
  RouterScore score = kRouterSoftmax;
  bool preSoftmax = false; ///< of all experts, and not only of those chosen
  double scale = 1;        ///< on the weights of experts
  double jitter = 0;       ///< its input is multiplied by uniform numbers so far from 1
  bool isFp32 = false;     ///< its product writes fp32, whatever the type of activations
  /// Weights of the losses that balance experts, by enum RouterLoss; 0: none.
  std::array<double, kRouterLosses> losses{};
  /// The share of the sum over ranks, microbatches and layers that a run reports as loss.
  double reportedShare = 1;
  int64_t dataRanks = 1;     ///< with other samples
  double capacityFactor = 0; ///< rows of an expert, as a multiple of an even share; 0: no bound
  double slotFactor = 0;     ///< rows that a rank gives another, likewise; 0: all that can be
  bool dropsByPosition = false;
  bool isBySinkhorn = false; ///< in training, experts are chosen so that they have even shares
};

struct MoeSettings {
  int64_t experts = 1;
  RouterSettings router;
  MlpSettings expert;                ///< each of them
  std::optional<MlpSettings> shared; ///< the expert of all tokens
  bool hasSharedGate = false; ///< its result is scaled by the sigmoid of a logit of the token
  bool weighsInput = false;   ///< weights scale rows before experts, and not what these make
};

class MoeMlp : public Module {
public:
  explicit MoeMlp(const MoeSettings &settings) : s_(settings) {}
  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// Rows of tokens in groups, one for each expert. Ranks with other experts exchange them; ranks
  /// with other parts of the same experts gather them.
  struct Runs {
    int64_t rows;                ///< that there is room for, of tokens here, and of those taken
    plan::ValueId given, places; ///< counts and places of the rows of tokens here
    plan::ValueId taken;         ///< counts of those from ranks with other experts
    plan::ValueId counts;        ///< of the rows that the experts here work on
    plan::ValueId chosen;        ///< f32[T,K], weights of the experts of tokens here
    plan::ValueId takenWeights;  ///< f32[.,1] of rows taken: of the expert in the token's result
    plan::ValueId weights;       ///< the same of the rows that the experts work on
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
  /// Whether any loss balances experts.
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
  /// The results of experts, and of the first factor of their last adapter, if there is one;
  /// partial sums if ranks have parts of experts.
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
