// Backward rule of embedding lookups.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {

void backEmbedding(Gradients &gradients, const plan::Op &op) {
  ValueId dx = gradients.of(op.results[0]);
  if (dx == plan::kNone)
    return;
  plan::Op back = gradients.makeOp(OpKind::EmbeddingBwd, {dx, op.operands[0]});
  back.group = op.group;
  gradients.emitForParam(op.operands[1], std::move(back));
}

} // namespace shardc::passes
