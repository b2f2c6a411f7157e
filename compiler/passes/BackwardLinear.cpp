// Backward rules of matrix products and of sums.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"

namespace shardc::passes {

/// c = a·bᵀ (+ bias): computes the weight gradient first, to end the live range of `a` as early as
/// possible. If ranks sum the gradient of `a`, computes that one first, so that the sum overlaps
/// the weight gradient.
void backMatMul(Gradients &gradients, const Op &op) {
  ValueId dc = gradients.of(op.results[0]);
  ValueId a = op.operands[plan::operandIndex<OpKind::MatMul>("a")];
  ValueId b = op.operands[plan::operandIndex<OpKind::MatMul>("b")];
  SHARDC_CHECK(op.getBool(Key::trans_b) && !op.getBool(Key::trans_a), "forward products are x·wᵀ");
  if (constexpr size_t kBias = plan::operandIndex<OpKind::MatMul>("bias");
      op.operands.size() > kBias)
    gradients.emitForParam(op.operands[kBias], gradients.makeOp(OpKind::ReduceRows, {dc}));
  if (gradients.typeOf(dc).dtype != gradients.typeOf(b).dtype) // both operands must have one type
    dc = gradients.castTo(dc, gradients.typeOf(b).dtype);
  Op input = gradients.makeOp(OpKind::MatMul, {dc, b});
  input.role = plan::ProductRole::InputGradient;
  Op weight = gradients.makeOp(OpKind::MatMul, {dc, a});
  weight.role = plan::ProductRole::WeightGradient;
  weight.set(Key::trans_a, int64_t{1});
  bool isSummed = gradients.isBetweenRanks(a);
  if (isSummed)
    gradients.emitFor(a, input);
  gradients.emitFor(b, std::move(weight)); // b is a parameter or computed from one
  if (!isSummed)
    gradients.emitFor(a, std::move(input));
}

void backBiasAdd(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  gradients.emitForParam(op.operands[1], gradients.makeOp(OpKind::ReduceRows, {dy}));
  gradients.settle(op.operands[0], dy);
}

void backAdd(Gradients &gradients, const Op &op) {
  ValueId dc = gradients.of(op.results[0]);
  gradients.settle(op.operands[0], dc);
  gradients.settle(op.operands[1], dc);
}

} // namespace shardc::passes
