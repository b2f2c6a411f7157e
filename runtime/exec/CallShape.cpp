// Fills the parts of a kernel call that follow from the plan alone. Both the executor and the
// programs that choose kernels use them, so that they ask a kernel about the same call.
#include "runtime/exec/CallShape.h"

#include <algorithm>

#include "runtime/plan/AttrFields.h"

namespace shardc::exec {
kernels::Tensor tensorOf(const plan::Type &type) {
  kernels::Tensor tensor;
  tensor.dtype = type.dtype;
  tensor.rank = type.rank;
  std::copy(type.shape.begin(), type.shape.end(), tensor.shape);
  return tensor;
}

kernels::Attrs attrsOf(const plan::Op &op) {
  kernels::Attrs attrs;
  for (const plan::Attr &attr : op.attrs)
    plan::setAttr(attrs, attr.key, attr.i); // of a real number, its bits
  return attrs;
}

/// Ops with more operands or results than a call has room for take their operands as a list, which
/// has no shape here. Their call keeps no tensors.
kernels::Call shapeOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op) {
  kernels::Call call;
  call.attrs = attrsOf(op);
  if (plan::opInfo(op).takesIndex())
    call.groupSize = plan.groupSize(op.group);
  if (op.operands.size() > kernels::kOperandsMax || op.results.size() > kernels::kResultsMax)
    return call;
  for (plan::ValueId operand : op.operands)
    call.in[call.inCount++] = tensorOf(segment.values[operand].type);
  for (plan::ValueId result : op.results)
    call.out[call.outCount++] = tensorOf(segment.values[result].type);
  return call;
}

} // namespace shardc::exec
