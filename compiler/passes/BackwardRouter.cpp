// Backward rules of routers. The choice of experts has no gradient; the weights of the chosen
// experts have one.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {

namespace {

/// Emits the gradient of the chosen experts' logits. It does not depend on the criterion of the
/// choice.
template <OpKind kind> void backChoice(Gradients &gradients, const Op &op) {
  ValueId ids = op.results[plan::resultIndex<kind>("ids")];
  ValueId dweights = gradients.of(op.results[plan::resultIndex<kind>("weights")]);
  if (dweights == kNone)
    return;
  ValueId logits = op.operands[plan::operandIndex<kind>("logits")];
  Op back = gradients.makeOp(OpKind::RouterTopkBwd, {dweights, logits, ids});
  back.attrs = op.attrs;
  gradients.emitFor(logits, std::move(back));
}

} // namespace

/// The bias influences only the choice of experts, so it has no gradient.
void backRouterTopk(Gradients &gradients, const Op &op) {
  backChoice<OpKind::RouterTopk>(gradients, op);
}

void backRouterSinkhorn(Gradients &gradients, const Op &op) {
  backChoice<OpKind::RouterSinkhorn>(gradients, op);
}

/// The load operand of the loss has no gradient.
void backRouterLoss(Gradients &gradients, const Op &op) {
  ValueId logits = op.operands[plan::operandIndex<OpKind::RouterLoss>("logits")];
  ValueId load = op.operands[plan::operandIndex<OpKind::RouterLoss>("load")];
  Op back = gradients.start({logits, load}, /*isAppended=*/true);
  back.attrs = op.attrs;
  back.group = op.group;
  gradients.emitFor(logits, std::move(back));
}

void backRouterZLoss(Gradients &gradients, const Op &op) {
  ValueId logits = op.operands[plan::operandIndex<OpKind::RouterZLoss>("logits")];
  Op back = gradients.start({logits}, /*isAppended=*/true);
  back.attrs = op.attrs;
  gradients.emitFor(logits, std::move(back));
}

} // namespace shardc::passes
