// Backward rules of losses, at which backpropagation starts.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {

/// VocabStats has no backward op. One op computes the logits' gradient from logits, labels and
/// statistics.
void backVocabLoss(Gradients &gradients, const Op &op) {
  const Op stats = gradients.statsOf(op);
  ValueId logits = stats.operands[plan::operandIndex<OpKind::VocabStats>("logits")];
  ValueId labels = stats.operands[plan::operandIndex<OpKind::VocabStats>("labels")];
  ValueId mask =
      gradients.weightsOf(op, op.operands[plan::operandIndex<OpKind::VocabLoss>("mask")]);
  ValueId lse = op.results[plan::resultIndex<OpKind::VocabLoss>("lse")];
  Op back = gradients.start({logits, lse, labels, mask}, /*isAppended=*/true);
  back.attrs = op.attrs;
  back.group = stats.group;
  gradients.emitFor(logits, std::move(back));
}

/// The fused head computes loss and gradients in one op, which replaces the forward op at its
/// position.
void backLmLoss(Gradients &gradients, const Op &op) {
  ValueId x = op.operands[plan::operandIndex<OpKind::LmLoss>("x")];
  ValueId w = op.operands[plan::operandIndex<OpKind::LmLoss>("w")];
  ValueId labels = op.operands[plan::operandIndex<OpKind::LmLoss>("labels")];
  ValueId mask = op.operands[plan::operandIndex<OpKind::LmLoss>("mask")];
  const Op start = gradients.start({x, w, labels, mask}, /*isAppended=*/false);
  Op both = op;
  both.kind = start.kind;
  both.operands = start.operands;
  ValueId dx = gradients.contribute(both, x);
  if (gradients.isWanted(w))
    gradients.contributeFirst(both, w);
  gradients.replaceForward(std::move(both));
  gradients.settle(x, dx);
}

} // namespace shardc::passes
