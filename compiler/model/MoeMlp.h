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
  double slotFactor = 0;     ///< maximum rows from one rank to another, likewise; 0: no limit
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
  /// Emits the choice of experts, drops choices over capacity, and adds the balancing losses. The
  /// load is counted after drops.
  Runs route(Forward &to, plan::ValueId x) const;
  /// The capacity of a slot in rows: the maximum that a rank can send to another one, since a token
  /// has a row for each of its experts; or less if the recipe says so.
  int64_t slotRows(const Forward &to, int64_t tokens, int64_t ranks) const;
  /// Groups the rows by expert, in one slot for each rank with other experts.
  Runs groupsOf(Forward &to, plan::ValueId ids, plan::ValueId weights) const;
  /// The router's logits in fp32. The product is in fp32 only if the router is; otherwise, it is
  /// cast.
  plan::ValueId logits(Forward &to, plan::ValueId x) const;
  /// Scales the shared expert's result by the sigmoid of a logit, computed as the weight of a
  /// router with one expert.
  plan::ValueId gated(Forward &to, plan::ValueId x, plan::ValueId shared) const;
  /// Chooses the experts of each row, and their weights. In evaluation, Sinkhorn's algorithm is not
  /// used, because it would balance over the rows.
  std::vector<plan::ValueId> choose(Forward &to, plan::ValueId logits, plan::ValueId bias) const;
  /// The experts of each row with the highest scores. Balancing losses count these, regardless of
  /// the bias and groups that affect the choice.
  plan::ValueId bestOf(Forward &to, plan::ValueId logits, plan::ValueId ids,
                       plan::ValueId bias) const;
  plan::Op chooser(Forward &to, plan::ValueId logits) const;
  /// Adds the balancing losses of a microbatch. `ids`: the experts of each row that count.
  void balance(Forward &to, plan::ValueId logits, plan::ValueId ids, int64_t layer) const;
  /// Adds a balancing loss for each row. A run reports it without its weight.
  void addLoss(Forward &to, plan::ValueId logits, plan::ValueId load, RouterLoss kind,
               double scale) const;
  /// Counts how often each expert is chosen in each of `parts` equal parts of the rows. keptLoad()
  /// counts for a cell, whose rows are longer, with zeros after the experts.
  plan::ValueId load(Forward &to, plan::ValueId ids, int64_t parts, const char *what) const;
  plan::ValueId keptLoad(Forward &to, plan::ValueId ids, const char *cell, const char *what) const;
  /// Whether there is a balancing loss.
  bool isBalanced() const {
    return std::ranges::any_of(s_.router.losses, [](double weight) { return weight != 0; });
  }
  /// Marks choices that exceed the capacity of their expert as dropped.
  plan::ValueId dropped(Forward &to, const std::vector<plan::ValueId> &chosen) const;
  /// Exchanges rows with the ranks that have other experts. Returns the received rows.
  plan::ValueId exchanged(Forward &to, plan::ValueId rows, const char *what,
                          const Runs &runs) const;
  /// Gathers the rows of all ranks that have parts of the same experts.
  plan::ValueId gathered(Forward &to, plan::ValueId taken, const char *what,
                         const Runs &runs) const;
  /// Emits a product of each row with the named weight of its expert.
  plan::ValueId product(Forward &to, plan::ValueId x, const char *name, const std::string &what,
                        int64_t columns, const Runs &runs) const;
  /// The results of experts, and of the first factor of their last adapter, if there is one.
  /// Partial sums if ranks have parts of experts.
  struct Made {
    plan::ValueId rows, inner;
  };
  bool isAdapted(const char *linear) const;
  /// Emits the product with an adapter's first factor. `rows`: those of one rank, or of all.
  plan::ValueId adapterIn(Forward &to, plan::ValueId rows, const char *name, plan::ValueId factor,
                          plan::ValueId counts) const;
  /// Emits an adapter's contribution, from the product with its first factor, and adds it to
  /// `made`.
  plan::ValueId adapterOut(Forward &to, plan::ValueId made, plan::ValueId inner, const char *name,
                           plan::ValueId factor, plan::ValueId counts) const;
  /// Applies the first adapter factor of the first products. If ranks have parts of experts, each
  /// rank applies it to the rows that it has received, and the results are gathered, because they
  /// are only as wide as the adapter's rank.
  plan::ValueId innerUp(Forward &to, plan::ValueId taken, const Runs &runs) const;
  /// Applies the second adapter factor of the last products to the rows that the rank keeps, after
  /// `inner` was summed over the parts of experts.
  plan::ValueId adaptedDown(Forward &to, plan::ValueId sum, plan::ValueId inner,
                            const Runs &runs) const;
  /// The last products, and the products with their adapters' first factors.
  Made down(Forward &to, plan::ValueId rows, const std::string &what, const Runs &runs) const;
  /// Adds to each row the bias of its expert, scaled by `weights` if given.
  static plan::ValueId biased(Forward &to, plan::ValueId x, plan::ValueId bias, const char *what,
                              plan::ValueId counts, plan::ValueId weights);
  /// Sends the rows back. Ranks with parts of experts have computed partial sums, to which one bias
  /// must be added: each rank adds it to the rows that it keeps, and so computes a part of its
  /// gradient.
  plan::ValueId returned(Forward &to, const Made &made, const Runs &runs) const;
  Made apply(Forward &to, plan::ValueId rows, plan::ValueId inner, const Runs &runs) const;

  MoeSettings s_;
};

} // namespace shardc::model
