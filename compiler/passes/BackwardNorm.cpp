// Backward rules of norms. The backward op adds the gradient of the residual stream itself.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"

namespace shardc::passes {
namespace {

/// Appends the backward op of a norm. The op's results from y on are y and its statistics; its
/// operands from w on are parameters; `x` is its input. Returns the gradient of x, or kNone if y
/// has no gradient.
template <OpKind kind> ValueId norm(Gradients &gradients, const Op &op, OpKind bwd, ValueId x) {
  constexpr size_t kWeight = plan::operandIndex<kind>("w"), kNormed = plan::resultIndex<kind>("y");
  ValueId dy = gradients.of(op.results[kNormed]);
  if (dy == kNone)
    return kNone;
  Op back = gradients.makeOp(bwd, {dy, x, op.operands[kWeight]});
  back.attrs = op.attrs;
  for (size_t r = kNormed + 1; r < op.results.size(); ++r)
    back.operands.push_back(op.results[r]);
  if (ValueId residual = gradients.take(x); residual != kNone)
    back.operands.push_back(residual);
  ValueId dx = gradients.contribute(back, x);
  bool hasOwn = gradients.isWanted(op.operands[kWeight]);
  if (!hasOwn && bwd == OpKind::RmsNormBwd)
    back.kind = OpKind::RmsNormDx;
  for (size_t i = kWeight; hasOwn && i < op.operands.size(); ++i)
    gradients.contribute(back, op.operands[i]);
  gradients.append(std::move(back));
  gradients.settle(x, dx);
  return dx;
}

/// The rule of an op that adds two terms before it normalises: both terms get the gradient of the
/// sum.
template <OpKind kind> void normOfSum(Gradients &gradients, const Op &op, OpKind bwd) {
  ValueId dx = norm<kind>(gradients, op, bwd, plan::resultNamed<kind>(op, "sum"));
  if (dx == kNone)
    return;
  gradients.settle(plan::operandNamed<kind>(op, "a"), dx);
  gradients.settle(plan::operandNamed<kind>(op, "b"), dx);
}

} // namespace

void backRmsNorm(Gradients &gradients, const Op &op) {
  ValueId x = plan::operandNamed<OpKind::RmsNorm>(op, "x");
  norm<OpKind::RmsNorm>(gradients, op, OpKind::RmsNormBwd, x);
}

/// Ranks have columns of each row. The gradient needs the mean of dy·w·x over whole rows, so ranks
/// sum it over the group over which the forward pass summed the squares. The gradient of x includes
/// the dependence of the squares on x.
void backRmsNormPart(Gradients &gradients, const Op &op) {
  constexpr OpKind kKind = OpKind::RmsNormPart;
  ValueId dy = gradients.of(op.results[0]), x = plan::operandNamed<kKind>(op, "x"),
          w = plan::operandNamed<kKind>(op, "w"),
          squares = plan::operandNamed<kKind>(op, "squares");
  const Op sum = gradients.producerOf(squares);
  SHARDC_CHECK(sum.kind == OpKind::AllReduce, "squares of whole rows are sums over ranks");
  const Op own = gradients.producerOf(sum.operands[0]);
  Op dots = gradients.makeOp(OpKind::DotRows, {dy, x, w});
  dots.set(plan::AttrKey::zero_centered, op.getInt(plan::AttrKey::zero_centered));
  dots.set(plan::AttrKey::scale, own.getFloat(plan::AttrKey::scale));
  const std::string name = "d." + gradients.nameOf(op.results[0]) + ".dots";
  ValueId part = gradients.emitLike(sum.operands[0], name + ".part", std::move(dots));
  Op all = gradients.makeOp(OpKind::AllReduce, {part});
  all.group = sum.group;
  ValueId whole = gradients.emitLike(squares, name, std::move(all));
  Op back = gradients.makeOp(OpKind::RmsNormPartBwd, {dy, x, w, squares, whole});
  back.attrs = op.attrs;
  ValueId dx = gradients.contribute(back, x);
  if (gradients.isWanted(w))
    gradients.contribute(back, w);
  gradients.append(std::move(back));
  gradients.settle(x, dx);
}

void backAddRmsNorm(Gradients &gradients, const Op &op) {
  normOfSum<OpKind::AddRmsNorm>(gradients, op, OpKind::RmsNormBwd);
}

void backLayerNorm(Gradients &gradients, const Op &op) {
  ValueId x = plan::operandNamed<OpKind::LayerNorm>(op, "x");
  norm<OpKind::LayerNorm>(gradients, op, OpKind::LayerNormBwd, x);
}

void backAddLayerNorm(Gradients &gradients, const Op &op) {
  normOfSum<OpKind::AddLayerNorm>(gradients, op, OpKind::LayerNormBwd);
}

} // namespace shardc::passes
