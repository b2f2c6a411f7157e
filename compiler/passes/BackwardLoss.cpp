// Backward rules of losses, where gradients begin.
#include "compiler/passes/Gradients.h"

namespace shardc::passes {

using plan::Op;
using plan::OpKind;
using plan::ValueId;

void backCrossEntropy(Gradients &gradients, const Op &op) {
  Op back =
      gradients.makeOp(OpKind::CrossEntropyBwd, {op.operands[0], op.results[1], op.operands[1],
                                                 op.operands[2], gradients.tokenCount()});
  back.attrs = op.attrs;
  gradients.scale(back, /*isAppended=*/true);
  gradients.emitFor(op.operands[0], std::move(back));
}

/// The statistics have no gradient of their own: that of the logits follows from them all.
void backVocabLoss(Gradients &gradients, const Op &op) {
  const Op stats = gradients.statsOf(op);
  Op back = gradients.makeOp(OpKind::CrossEntropyBwd,
                             {stats.operands[0], op.results[1], stats.operands[1], op.operands[1],
                              gradients.tokenCount()});
  back.attrs = op.attrs;
  back.group = stats.group;
  gradients.scale(back, /*isAppended=*/true);
  gradients.emitFor(stats.operands[0], std::move(back));
}

/// Forward and gradient of the fused head are one op: it replaces the forward op in its place.
void backLmLoss(Gradients &gradients, const Op &op) {
  Op both = op;
  both.kind = OpKind::LmLossGrad;
  both.operands.push_back(gradients.tokenCount());
  gradients.scale(both, /*isAppended=*/false);
  ValueId dx = gradients.contribute(both, op.operands[0]);
  gradients.contribute(both, op.operands[1]);
  gradients.replaceForward(std::move(both));
  gradients.settle(op.operands[0], dx);
}

} // namespace shardc::passes
