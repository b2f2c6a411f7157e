// Backward rules of activations, dropout, rotations and changes of type.
#include <array>

#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {
namespace {

/// Emits the gradient of an activation from dy and x, with the attributes of the forward op.
void activation(Gradients &gradients, const Op &op, OpKind kind) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  Op back = gradients.makeOp(kind, {dy, op.operands[0]});
  back.attrs = op.attrs;
  gradients.emitFor(op.operands[0], std::move(back));
}

/// The gradient of a linear op is the same op, or its inverse, applied to dy.
void linear(Gradients &gradients, const Op &op, bool isInverse) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  Op back = op;
  back.results.clear();
  back.operands[0] = dy;
  if (isInverse)
    back.set(plan::AttrKey::inverse, int64_t{1});
  gradients.emitFor(op.operands[0], std::move(back));
}

} // namespace

void backGelu(Gradients &gradients, const Op &op) { activation(gradients, op, OpKind::GeluBwd); }

void backSwiGlu(Gradients &gradients, const Op &op) {
  activation(gradients, op, OpKind::SwiGluBwd);
}

void backSquaredRelu(Gradients &gradients, const Op &op) {
  activation(gradients, op, OpKind::SquaredReluBwd);
}

void backGeGlu(Gradients &gradients, const Op &op) { activation(gradients, op, OpKind::GeGluBwd); }

void backQuickGeGlu(Gradients &gradients, const Op &op) {
  activation(gradients, op, OpKind::QuickGeGluBwd);
}

void backDropout(Gradients &gradients, const Op &op) { linear(gradients, op, false); }

void backCast(Gradients &gradients, const Op &op) { linear(gradients, op, false); }

void backTranspose(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  Op back = gradients.makeOp(OpKind::Transpose, {dy});
  back.set(plan::AttrKey::outer, op.getInt(plan::AttrKey::inner));
  back.set(plan::AttrKey::inner, op.getInt(plan::AttrKey::outer));
  gradients.emitFor(op.operands[0], std::move(back));
}

void backMergeSlices(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  Op back = gradients.makeOp(OpKind::MergeSlices, {dy});
  back.attrs = op.attrs;
  back.set(plan::AttrKey::inverse, int64_t{!op.getBool(plan::AttrKey::inverse)});
  gradients.emitFor(op.operands[0], std::move(back));
}

/// The squares have no gradient: DoRA takes norms as constants.
void backScaleColumns(Gradients &gradients, const Op &op) {
  constexpr OpKind kOp = OpKind::ScaleColumns;
  ValueId dy = gradients.of(op.results[0]), x = plan::operandNamed<kOp>(op, "x"),
          m = plan::operandNamed<kOp>(op, "m");
  if (dy == kNone)
    return;
  Op back =
      gradients.makeOp(OpKind::ScaleColumnsBwd, {dy, x, m, plan::operandNamed<kOp>(op, "squares")});
  back.attrs = op.attrs;
  gradients.emitForEach(std::array{x, m}, std::move(back));
}

void backGate(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  Op back = gradients.makeOp(OpKind::GateBwd, {dy, op.operands[0], op.operands[1]});
  back.attrs = op.attrs;
  gradients.emitForEach(op.operands, std::move(back));
}

void backRope(Gradients &gradients, const Op &op) { linear(gradients, op, true); }

void backScalePositions(Gradients &gradients, const Op &op) { linear(gradients, op, false); }

} // namespace shardc::passes
