#include "runtime/plan/StateShare.h"

#include <algorithm>

namespace shardc::plan {
namespace {

constexpr int64_t kStepMultiple = 64; ///< elements: stretches begin on 256 bytes in fp32

} // namespace

StateShare stateShareOf(int64_t numel, int64_t longestRow, int64_t ranks) {
  if (ranks < 2 || numel <= longestRow)
    return {};
  int64_t step = (numel - longestRow) / ranks / kStepMultiple * kStepMultiple;
  if (step < longestRow)
    return {};
  // A row that begins before the next stretch ends no more than its own length after that.
  return {step, numel - (ranks - 1) * step};
}

StateShare stateShareOf(const Plan &plan, int32_t block) {
  const Block &each = plan.blocks[static_cast<size_t>(block)];
  if (each.stateShard != each.numel)
    return {};
  int64_t longest = 1;
  for (const Param &param : plan.params)
    if (param.block == block)
      longest = std::max(longest, param.rowSize());
  return stateShareOf(each.numel, longest, plan.groupSize(each.stateGroup));
}

std::vector<CellPart> partsOfCells(const Plan &plan, const Segment &segment) {
  std::vector<CellPart> parts(segment.values.size());
  for (const Segment::Boundary &in : segment.ins)
    parts[in.value].cell = in.cell;
  for (const Op &op : segment.ops)
    if (op.kind == OpKind::View) {
      const CellPart &whole = parts[op.operands[0]];
      if (std::optional<Moving> begin = sumOf(plan, whole.begin, beginOf(op)))
        parts[op.results[0]] = {whole.cell, *begin};
    }
  return parts;
}

} // namespace shardc::plan
