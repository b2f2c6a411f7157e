// Backward rules of norms. They take the residual's gradient as an operand and add it themselves.
#include "compiler/passes/Gradients.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;

/// `isFused`: the op adds two terms first, and its first result is their sum. `vectors`: number of
/// parameters, the weight first.
void norm(Gradients &gradients, const Op &op, OpKind kind, bool isFused, size_t vectors) {
  size_t firstOperand = isFused ? 2 : 1, firstResult = isFused ? 1 : 0;
  ValueId dy = gradients.of(op.results[firstResult]);
  if (dy == kNone)
    return;
  ValueId x = isFused ? op.results[0] : op.operands[0];
  Op back = gradients.makeOp(kind, {dy, x, op.operands[firstOperand]});
  back.attrs = op.attrs;
  for (size_t r = firstResult + 1; r < op.results.size(); ++r)
    back.operands.push_back(op.results[r]);
  if (ValueId residual = gradients.take(x); residual != kNone)
    back.operands.push_back(residual);
  ValueId dx = gradients.contribute(back, x);
  for (size_t i = 0; i < vectors; ++i)
    gradients.contribute(back, op.operands[firstOperand + i]);
  gradients.append(std::move(back));
  gradients.settle(x, dx);
  if (isFused) {
    gradients.settle(op.operands[0], dx);
    gradients.settle(op.operands[1], dx);
  }
}

} // namespace

void backRmsNorm(Gradients &gradients, const Op &op) {
  norm(gradients, op, OpKind::RmsNormBwd, /*isFused=*/false, /*vectors=*/1);
}

void backAddRmsNorm(Gradients &gradients, const Op &op) {
  norm(gradients, op, OpKind::RmsNormBwd, /*isFused=*/true, /*vectors=*/1);
}

void backLayerNorm(Gradients &gradients, const Op &op) {
  norm(gradients, op, OpKind::LayerNormBwd, /*isFused=*/false, /*vectors=*/2);
}

void backAddLayerNorm(Gradients &gradients, const Op &op) {
  norm(gradients, op, OpKind::LayerNormBwd, /*isFused=*/true, /*vectors=*/2);
}

} // namespace shardc::passes
