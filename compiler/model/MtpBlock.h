// A multi-token prediction block (Megatron-Core's MultiTokenPredictionLayer; DeepSeek-V3, arXiv
// 2412.19437, 2.2): norms of the embedding of a later token and of the head's operand, a product of
// both, a layer, a norm, and the shared head.
#pragma once

#include "compiler/model/Embedding.h"
#include "compiler/model/Head.h"
#include "compiler/model/Parts.h"

namespace shardc::model {

/// One block; the embedding and the head are the model's own, so their parameters are not declared
/// again.
struct MtpSettings {
  int64_t hidden = 1;
  NormSettings norm;
  double initStd = 0;
  EmbeddingSettings embedding;
  HeadSettings head;
  bool isPerToken = false; ///< gradients are divided by the step's number of tokens at its end
  /// The share of a microbatch's mean loss that a rank adds to the reported loss of a step.
  double reportedShare = 1;
};

/// Blocks are applied in order, after the head.
class MtpBlock : public Module {
public:
  MtpBlock(const MtpSettings &settings, Modules layer);
  void declare(Params &params) const override;
  /// Block k, counted from 1, reads tokens, positions, labels and the mask k positions ahead, and
  /// the operand of the head or of the preceding block. Returns `losses`, the losses of the head,
  /// unchanged: the block's own losses start their own gradients, and only their mean is reported.
  plan::ValueId forward(Forward &to, plan::ValueId losses) const override;

private:
  /// Emits the operand of the layer: a product of both, joined side by side.
  plan::ValueId joined(Forward &to, plan::ValueId embedded) const;

  MtpSettings s_;
  Norm enorm_, hnorm_, norm_;
  Linear projection_;
  Modules layer_;
};

} // namespace shardc::model
