// Backward rules of attention and of the split of its rows.
#include "compiler/passes/Gradients.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;

void splitQkv(Gradients &gradients, const Op &op, OpKind kind) {
  ValueId dq = gradients.of(op.results[0]), dk = gradients.of(op.results[1]),
          dv = gradients.of(op.results[2]);
  if (dq == kNone)
    return;
  Op merge = gradients.makeOp(kind, {dq, dk, dv});
  merge.attrs = op.attrs;
  merge.operands.insert(merge.operands.end(), op.operands.begin() + 1, op.operands.end());
  gradients.emitFor(op.operands[0], std::move(merge));
}

/// What an op's keys add to the gradients of what it took, from the gradient, the output and the
/// statistics of the attention that it is, or is a part of.
void attention(Gradients &gradients, OpKind kind, const Op &op, ValueId dout, const Op &whole) {
  Op back = gradients.makeOp(kind, {dout});
  back.attrs = op.attrs;
  back.group = op.group;
  back.operands.insert(back.operands.end(), op.operands.begin(), op.operands.begin() + 3);
  back.operands.insert(back.operands.end(), whole.results.begin(), whole.results.end());
  back.operands.insert(back.operands.end(), op.operands.begin() + 3, op.operands.end());
  ValueId d[3];
  for (size_t i = 0; i < 3; ++i)
    d[i] = gradients.contribute(back, op.operands[i]);
  gradients.append(std::move(back));
  for (size_t i = 0; i < 3; ++i)
    gradients.settle(op.operands[i], d[i]);
}

/// The gradient goes to all parts that were joined, each with what all of them have made.
void joined(Gradients &gradients, const Op &join, ValueId dout, const Op &whole) {
  for (ValueId output : {join.operands[0], join.operands[2]}) {
    const Op maker = gradients.makerOf(output);
    if (maker.kind == OpKind::AttentionJoin)
      joined(gradients, maker, dout, whole);
    else
      attention(gradients, OpKind::AttentionPartBwd, maker, dout, whole);
  }
}

} // namespace

void backAttentionPart(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(op.results[0]); dout != kNone)
    attention(gradients, OpKind::AttentionPartBwd, op, dout, op);
}

void backAttentionJoin(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(op.results[0]); dout != kNone)
    joined(gradients, op, dout, op);
}

void backSplitQkv(Gradients &gradients, const Op &op) { splitQkv(gradients, op, OpKind::MergeQkv); }

void backSplitQkvRope(Gradients &gradients, const Op &op) {
  splitQkv(gradients, op, OpKind::MergeQkvRope);
}

void backAttention(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(op.results[0]); dout != kNone)
    attention(gradients, OpKind::AttentionBwd, op, dout, op);
}

} // namespace shardc::passes
