// A mixture of experts: a router chooses experts for each token, and the token's result is the sum
// of theirs. Experts are stacked parameters. Each token may also go through a shared expert.
#pragma once

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
  bool isFp32 = false;     ///< its product writes fp32, whatever the type of activations
};

struct MoeSettings {
  int64_t experts = 1;
  RouterSettings router;
  MlpSettings expert;                ///< each of them
  std::optional<MlpSettings> shared; ///< the expert of all tokens
  bool hasSharedGate = false;        ///< parameters alone
};

class MoeMlp : public Module {
public:
  explicit MoeMlp(const MoeSettings &settings) : s_(settings) {}
  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// Rows of tokens that lie in runs, one for each expert.
  struct Runs {
    int64_t rows; ///< that there is room for
    plan::ValueId counts, places;
    plan::ValueId weights; ///< f32[rows,1]: of the expert in the token's result
  };
  Runs route(Forward &to, plan::ValueId x) const;
  plan::ValueId logits(Forward &to, plan::ValueId x) const;
  plan::ValueId apply(Forward &to, plan::ValueId rows, const Runs &runs) const;

  MoeSettings s_;
};

} // namespace shardc::model
