// Attaches row counts to ops and exchanges, so that they skip unused rows of expert buffers. This
// applies if the capacity of the buffers is larger than the number of rows that may arrive. The op
// table says which ops can use counts, and the types of values say which rows are counted. With one
// slot, the capacity is that of this rank's own tokens, and nearly all rows are used.
#include "compiler/passes/Passes.h"
#include "runtime/plan/Factors.h"

namespace shardc::passes {
namespace {

void countRows(plan::Segment &segment) {
  for (plan::Op &op : segment.ops) {
    std::optional<size_t> at = plan::factorsOf(op.kind).leavesOutBy();
    if (!at || op.operands.size() != *at)
      continue;
    plan::ValueId counts = segment.values[op.operands[0]].counts;
    if (counts != plan::kNone && segment.values[counts].type.shape[0] > 1)
      op.operands.push_back(counts);
  }
}

} // namespace

void runCountRows(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      countRows(segment);
}

} // namespace shardc::passes
