// The feed-forward layer: a product, an activation, a product. With a gate, the first product makes
// gate and up one after the other, as Megatron stores them.
#pragma once

#include "compiler/model/Parts.h"

namespace shardc::model {

struct MlpSettings {
  int64_t hidden = 1, width = 1;
  bool gated = false, hasBias = false;
  plan::OpKind activation = plan::OpKind::Gelu;
  bool tanhApprox = false; ///< of GELU
  double clamp = 0;        ///< of what a gated unit multiplies; 0: none
  double linearOffset = 0; ///< added to the half of it that is not the gate
  double initStd = 0, residualStd = 0, hiddenDropout = 0;
  Adapters adapters = {};
};

/// Sets the attributes of an activation.
void setActivation(plan::Op &op, const MlpSettings &settings);

class DenseMlp : public Module {
public:
  /// The parameters' names begin with `stem`, those of values with `what`. `kind`: of the weights.
  explicit DenseMlp(const MlpSettings &settings, const std::string &stem = "mlp.",
                    std::string what = "", ParamKind kind = ParamKind::FeedForward);

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  MlpSettings s_;
  Linear fc1_, fc2_;
  std::string what_;
};

} // namespace shardc::model
