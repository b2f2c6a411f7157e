// The output layer and the loss of each token.
#pragma once

#include "compiler/model/Module.h"

namespace shardc::model {

/// Of a loss of pairs; see preference_loss.
struct PairSettings {
  int64_t kind = 0;
  double beta = 0, smoothing = 0;
  bool countsAll = false; ///< the loss of chosen answers counts their prompts, too
};

struct HeadSettings {
  int64_t vocab = 1, hidden = 1;
  int64_t validCols = 1; ///< columns over which the softmax runs
  bool tied = false;     ///< the weight is that of the embedding
  double initStd = 0;
  double softCap = 0; ///< of logits; 0: none
  PairSettings pairs; ///< where a body has pairs
};

class Head : public Module {
public:
  static constexpr const char *kWeight = "output_layer.weight";

  explicit Head(const HeadSettings &settings) : s_(settings) {}

  void declare(Params &params) const override;
  /// Returns the masked losses, f32[B·S], or those of each sequence's pairs, f32[B], and leaves
  /// their number and `x` in `to`.
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;
  /// The masked losses of these labels, f32[B·S]. `logits` is the complete name of the logits'
  /// value. Names of parameters have no prefix.
  plan::ValueId losses(Forward &to, plan::ValueId x, plan::ValueId labels, plan::ValueId mask,
                       std::string logits) const;

private:
  plan::ValueId pairLosses(Forward &to, plan::ValueId x) const;

  HeadSettings s_;
};

} // namespace shardc::model
