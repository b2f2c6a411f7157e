// Backward rules of collectives between the parts of a layer, by the conjugates of Ops.def, and of
// views of what all ranks of a group have.
#include "compiler/passes/Gradients.h"
#include "runtime/base/Status.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;

void collective(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  const std::optional<OpKind> &conjugate = plan::opInfo(op.kind).collective->conjugate;
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

/// Each member has computed a part of the gradient of what it shares.
void backView(Gradients &gradients, const Op &op) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  SHARDC_CHECK(op.getBool(plan::AttrKey::shared),
               "forward views of activations are of all of them");
  Op sum = gradients.makeOp(OpKind::AllReduce, {dy});
  sum.group = op.group;
  gradients.emitFor(op.operands[0], std::move(sum));
}

} // namespace shardc::passes
