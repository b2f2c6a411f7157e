// Backward rules of dropout, rotations and changes of type.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {
namespace {

/// The gradient of a linear op is the same op, or its inverse, applied to dy.
void linear(Gradients &gradients, const Op &op, bool isInverse) {
  Op back = op;
  back.results.clear();
  back.operands[0] = gradients.of(op.results[0]);
  if (isInverse)
    back.set(plan::AttrKey::inverse, int64_t{1});
  gradients.emitFor(op.operands[0], std::move(back));
}

} // namespace

void backDropout(Gradients &gradients, const Op &op) { linear(gradients, op, false); }

void backCast(Gradients &gradients, const Op &op) { linear(gradients, op, false); }

void backTranspose(Gradients &gradients, const Op &op) {
  Op back = gradients.makeOp(OpKind::Transpose, {gradients.of(op.results[0])});
  back.set(plan::AttrKey::outer, op.getInt(plan::AttrKey::inner));
  back.set(plan::AttrKey::inner, op.getInt(plan::AttrKey::outer));
  gradients.emitFor(op.operands[0], std::move(back));
}

void backMergeSlices(Gradients &gradients, const Op &op) {
  Op back = gradients.makeOp(OpKind::MergeSlices, {gradients.of(op.results[0])});
  back.attrs = op.attrs;
  back.set(plan::AttrKey::inverse, int64_t{!op.getBool(plan::AttrKey::inverse)});
  gradients.emitFor(op.operands[0], std::move(back));
}

void backRope(Gradients &gradients, const Op &op) { linear(gradients, op, true); }

void backScalePositions(Gradients &gradients, const Op &op) { linear(gradients, op, false); }

} // namespace shardc::passes
