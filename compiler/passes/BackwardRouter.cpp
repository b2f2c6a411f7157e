// Backward rules of routers: experts are chosen without a gradient, their weights have one.
#include "compiler/passes/Gradients.h"

namespace shardc::passes {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;

/// The bias only helps to choose: it has none.
void backRouterTopk(Gradients &gradients, const Op &op) {
  ValueId ids = op.results[plan::resultIndex<OpKind::RouterTopk>("ids")];
  ValueId dweights = gradients.of(op.results[plan::resultIndex<OpKind::RouterTopk>("weights")]);
  if (dweights == kNone)
    return;
  ValueId logits = op.operands[plan::operandIndex<OpKind::RouterTopk>("logits")];
  Op back = gradients.makeOp(OpKind::RouterTopkBwd, {dweights, logits, ids});
  back.attrs = op.attrs;
  gradients.emitFor(logits, std::move(back));
}

} // namespace shardc::passes
