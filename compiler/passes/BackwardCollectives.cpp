// Backward rules of collectives inside layers, which use the conjugates of Ops.def, and of views of
// values that all ranks of a group share.
#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"

namespace shardc::passes {
namespace {

void collective(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  const std::optional<OpKind> &conjugate = plan::opInfo(op).collective->conjugate;
  if (!conjugate)
    return gradients.settle(op.operands[0], dy);
  Op back = gradients.makeOp(*conjugate, {dy});
  back.group = op.group;
  if (op.kind == OpKind::Shift)
    back.set(plan::AttrKey::by, -op.getInt(plan::AttrKey::by));
  gradients.emitFor(op.operands[0], std::move(back));
}

} // namespace

void backAllGather(Gradients &gradients, const Op &op) { collective(gradients, op); }

void backReduceScatter(Gradients &gradients, const Op &op) { collective(gradients, op); }

void backAllReduce(Gradients &gradients, const Op &op) { collective(gradients, op); }

void backAllToAll(Gradients &gradients, const Op &op) { collective(gradients, op); }

void backShift(Gradients &gradients, const Op &op) { collective(gradients, op); }

/// A view of a shared value: each rank has computed a part of the gradient, which is summed over
/// the group. Views that split a value into consecutive pieces: the pieces' gradients are
/// concatenated. A view of all elements only changes the shape of the gradient.
void backView(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (op.getBool(plan::AttrKey::shared)) {
    Op sum = gradients.makeOp(OpKind::AllReduce, {dy});
    sum.group = op.group;
    return gradients.emitFor(op.operands[0], std::move(sum));
  }
  if (op.getInt(plan::AttrKey::offset) > 0)
    return; // the view of the first piece emits the gradient of all
  if (gradients.numelOf(op.results[0]) == gradients.numelOf(op.operands[0]))
    return gradients.emitFor(op.operands[0], gradients.makeOp(OpKind::View, {dy}));
  Op pack = gradients.makeOp(OpKind::Pack, {});
  for (ValueId piece : gradients.piecesOf(op))
    pack.operands.push_back(gradients.of(piece));
  gradients.emitFor(op.operands[0], std::move(pack));
}

/// The gradient of each part is the piece of the result's gradient in its place.
void backPack(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  int64_t begin = 0;
  for (ValueId part : op.operands) {
    Op view = gradients.makeOp(OpKind::View, {dy});
    view.set(plan::AttrKey::offset, begin);
    begin += gradients.numelOf(part);
    gradients.emitFor(part, std::move(view));
  }
}

} // namespace shardc::passes
