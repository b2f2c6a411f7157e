// Backward rules of lookups in tables.
#include "compiler/passes/Gradients.h"

namespace shardc::passes {

using plan::OpKind;
using plan::ValueId;

void backEmbedding(Gradients &gradients, const plan::Op &op) {
  if (ValueId dx = gradients.of(op.results[0]); dx != plan::kNone)
    gradients.emitForParam(op.operands[1],
                           gradients.makeOp(OpKind::EmbeddingBwd, {dx, op.operands[0]}));
}

} // namespace shardc::passes
