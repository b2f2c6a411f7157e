// The output layer, and the loss of each token.
#pragma once

#include "compiler/model/Module.h"

namespace shardc::model {

/// Settings of a preference loss; see op preference_loss.
struct PairSettings {
  int64_t kind = 0;
  double beta = 0, gamma = 0, smoothing = 0;
  bool countsAll = false;   ///< whether the loss of chosen answers also counts their prompts
  bool hasReference = true; ///< whether answers are compared with a reference model's
};

/// The weight has `vocab` rows, including padding; columns from `validCols` on are left out of the
/// softmax.
struct HeadSettings {
  int64_t vocab = 1, hidden = 1;
  int64_t validCols = 1; ///< number of columns that the softmax includes
  bool tied = false;     ///< whether the weight is that of the embedding
  double initStd = 0;
  double softCap = 0;    ///< of logits; 0: no cap
  double multiplier = 1; ///< on logits, before the cap
  PairSettings pairs;    ///< for bodies with pairs
};

/// Product with the vocabulary, soft cap, cross entropy; x is [B,S,hidden].
class Head : public Module {
public:
  static constexpr const char *kWeight = "output_layer.weight";

  explicit Head(const HeadSettings &settings) : s_(settings) {}

  void declare(Params &params) const override;
  /// Returns the masked token losses, f32[B·S], or the losses of pairs, f32[B]. Stores their number
  /// and `x` in `to`.
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;
  /// The masked losses of these labels, f32[B·S]. `logits`: complete name of the logits' value. The
  /// caller must set an empty prefix for parameter names.
  plan::ValueId losses(Forward &to, plan::ValueId x, plan::ValueId labels, plan::ValueId mask,
                       std::string logits) const;

private:
  /// Emits the loss of every token, then the loss of pairs. A loss with `countsAll` (ORPO) has no
  /// reference model; its operand `reference` is 1 at every token of a document.
  plan::ValueId pairLosses(Forward &to, plan::ValueId x) const;

  HeadSettings s_;
};

} // namespace shardc::model
