// The feed-forward layer: a product, an activation, and another product. With a gate, the first
// product computes the columns of the gate and then those of up, in Megatron's order.
#pragma once

#include "compiler/model/Parts.h"

namespace shardc::model {

/// Sizes and numbers of one feed-forward layer: `width` columns between its products, of gate and
/// up each if gated.
struct MlpSettings {
  int64_t hidden = 1, width = 1;
  bool gated = false, hasBias = false;
  plan::OpKind activation = plan::OpKind::Gelu;
  bool tanhApprox = false; ///< for GELU
  double clamp = 0;        ///< limit of gate and up before they are multiplied; 0: none
  double linearOffset = 0; ///< added to up
  double initStd = 0, residualStd = 0, hiddenDropout = 0;
  Adapters adapters = {};
};

/// Sets the attributes of an activation.
void setActivation(plan::Op &op, const MlpSettings &settings);

/// x has `hidden` columns, and so has the result. Dropout follows the second product.
class DenseMlp : public Module {
public:
  /// `stem`: prefix of the parameters' names. `what`: prefix of the values' names. `kind`: of the
  /// weights.
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
