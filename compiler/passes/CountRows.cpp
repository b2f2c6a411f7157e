// Gives ops, and exchanges between ranks, the counts of the rows that they work on, where a plan
// has room for rows of experts that may not be there: so they leave those out. Which ops can take
// counts is said by their FACTORS rows, which rows are counted by the types of values. With one
// slot the room is for the rows of this rank's own tokens, and nearly all of them are there.
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
