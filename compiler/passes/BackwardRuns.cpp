// Backward rules of rows that are gathered into runs, and of products with a factor for each run.
#include "compiler/passes/Gradients.h"

namespace shardc::passes {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;
using Key = plan::AttrKey;

/// Gradients of rows, or of rows in runs, go the way back, with the same weights; that of a weight
/// is the product of both rows.
void backDispatch(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  ValueId x = op.operands[0], places = op.operands[1];
  Op back = gradients.makeOp(OpKind::Combine, {dy, places});
  if (op.operands.size() > 2) {
    ValueId weights = op.operands[2];
    gradients.emitFor(weights, gradients.makeOp(OpKind::CombineBwd, {dy, x, places}));
    back.operands.push_back(weights);
  }
  gradients.emitFor(x, std::move(back));
}

void backCombine(Gradients &gradients, const Op &op) {
  ValueId dx = gradients.of(op.results[0]);
  if (dx == kNone)
    return;
  ValueId y = op.operands[0], places = op.operands[1];
  Op back = gradients.makeOp(OpKind::Dispatch, {dx, places});
  if (op.operands.size() > 2) {
    ValueId weights = op.operands[2];
    gradients.emitFor(weights, gradients.makeOp(OpKind::CombineBwd, {y, dx, places}));
    back.operands.push_back(weights);
  }
  gradients.emitFor(y, std::move(back));
}

/// c = a·op(b[e]): weight gradient first, to end the live range of `a` as early as possible.
void backGroupedMatMul(Gradients &gradients, const Op &op) {
  ValueId dc = gradients.of(op.results[0]);
  if (dc == kNone)
    return;
  ValueId a = op.operands[0], b = op.operands[1], counts = op.operands[2];
  bool isTurned = op.getBool(Key::trans_b);
  gradients.emitFor(b, isTurned ? gradients.makeOp(OpKind::GroupedMatMulBwd, {dc, a, counts})
                                : gradients.makeOp(OpKind::GroupedMatMulBwd, {a, dc, counts}));
  Op back = gradients.makeOp(OpKind::GroupedMatMul, {dc, b, counts});
  if (!isTurned)
    back.set(Key::trans_b, int64_t{1});
  gradients.emitFor(a, std::move(back));
}

} // namespace shardc::passes
