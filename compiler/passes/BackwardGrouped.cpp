// Backward rules of ops on rows that are grouped by expert: dispatch, combine, and grouped
// products.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"

namespace shardc::passes {

namespace {

/// Dispatch and combine are each other's gradient: op `kind` moves the gradient back with the same
/// weights. The gradient of a weight is the dot product of a grouped row and a token's row: one
/// comes from the operand, the other from the incoming gradient.
void goBack(Gradients &gradients, const Op &op, OpKind kind) {
  ValueId gradient = gradients.of(op.results[0]);
  ValueId rows = op.operands[0], places = op.operands[1];
  Op back = gradients.makeOp(kind, {gradient, places});
  if (op.operands.size() > 2) {
    ValueId weights = op.operands[2];
    bool isInRuns = op.kind == OpKind::Combine; // whether the operand has grouped rows
    gradients.emitFor(weights,
                      gradients.makeOp(OpKind::CombineBwd, {isInRuns ? rows : gradient,
                                                            isInRuns ? gradient : rows, places}));
    back.operands.push_back(weights);
  }
  gradients.emitFor(rows, std::move(back));
}

} // namespace

void backDispatch(Gradients &gradients, const Op &op) { goBack(gradients, op, OpKind::Combine); }
void backCombine(Gradients &gradients, const Op &op) { goBack(gradients, op, OpKind::Dispatch); }

/// Computes the gradient of the weights first. It reads x, which may be freed after the other
/// gradient.
void backScaleRows(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  ValueId x = op.operands[0], weights = op.operands[1];
  gradients.emitFor(weights, gradients.makeOp(OpKind::DotRows, {dy, x}));
  gradients.emitFor(x, gradients.makeOp(OpKind::ScaleRows, {dy, weights}));
}

/// The squares that RmsNormPart reads have no gradient: the backward op of the norm includes the
/// dependence on them.
void backDotRows(Gradients &gradients, const Op &op) {
  SHARDC_CHECK(gradients.of(op.results[0]) == kNone, "products of rows have no gradient here");
}

/// c = a·op(b[e]): computes the weight gradient first, to end the live range of `a` as early as
/// possible.
void backGroupedMatMul(Gradients &gradients, const Op &op) {
  ValueId dc = gradients.of(op.results[0]);
  ValueId a = op.operands[0], b = op.operands[1], counts = op.operands[2];
  bool isTransposed = op.getBool(Key::trans_b);
  gradients.emitFor(b, isTransposed ? gradients.makeOp(OpKind::GroupedMatMulBwd, {dc, a, counts})
                                    : gradients.makeOp(OpKind::GroupedMatMulBwd, {a, dc, counts}));
  Op back = gradients.makeOp(OpKind::GroupedMatMul, {dc, b, counts});
  if (!isTransposed)
    back.set(Key::trans_b, int64_t{1});
  gradients.emitFor(a, std::move(back));
}

/// Passes the gradient of the sum on to x. The gradient of a weight is the dot product of its row
/// with the bias.
void backGroupedBias(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  ValueId x = op.operands[0], bias = op.operands[1], counts = op.operands[2];
  Op ofBias = gradients.makeOp(OpKind::GroupedBiasBwd, {dy, counts});
  if (op.operands.size() > 3) {
    ValueId weights = op.operands[3];
    ofBias.operands.push_back(weights);
    gradients.emitForParam(bias, std::move(ofBias));
    gradients.emitFor(weights, gradients.makeOp(OpKind::GroupedBiasDot, {dy, bias, counts}));
  } else {
    gradients.emitForParam(bias, std::move(ofBias));
  }
  gradients.settle(x, dy);
}

} // namespace shardc::passes
