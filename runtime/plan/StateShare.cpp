// Divides replicated state into shares of whole rows, and traces views back to the parts of cells
// that they alias.
#include "runtime/plan/HostCells.h"

#include <algorithm>
#include <compare>

namespace shardc::plan {
namespace {

constexpr int64_t kStepMultiple = 64; ///< elements: shares begin at multiples of 256 bytes in fp32

bool hasState(const Role &role, int32_t block) {
  return std::ranges::any_of(role.cells, [&](const Cell &cell) {
    return cell.of == block && (cell.kind == CellKind::Master || cell.kind == CellKind::Weight);
  });
}

/// The mesh axes along which ranks have different elements of the block, or divide its saving.
std::vector<bool> axesOfParts(const Plan &plan, int32_t block) {
  std::vector<bool> axes(plan.mesh.size());
  auto add = [&](int16_t group) {
    if (group >= 0)
      for (uint16_t axis : plan.groups[static_cast<size_t>(group)].axes)
        axes[axis] = true;
  };
  add(plan.blocks[static_cast<size_t>(block)].stateGroup);
  for (const Param &param : plan.params)
    if (param.block == block)
      for (const Split &split : param.splits)
        add(split.group);
  return axes;
}

/// The role's coordinates on each axis of the mesh.
std::vector<AxisRange> boxOf(const Plan &plan, const Role &role) {
  std::vector<AxisRange> box;
  for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis)
    box.push_back({axis, 0, plan.mesh[axis].size});
  for (const AxisRange &range : role.where)
    box[range.axis] = range;
  return box;
}

} // namespace

StateShare stateShareOf(int64_t numel, int64_t longestRow, int64_t ranks) {
  if (ranks < 2 || numel <= longestRow)
    return {};
  int64_t step = (numel - longestRow) / ranks / kStepMultiple * kStepMultiple;
  if (step < longestRow)
    return {};
  // The last row that begins in a rank's range ends less than one row length beyond it.
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

bool savesBlock(const Plan &plan, uint32_t role, int32_t block) {
  if (isOfBase(plan, plan.blocks[static_cast<size_t>(block)]))
    return false;
  auto hasItToo = [&](const Role &other) {
    return &other != &plan.roles[role] && hasState(other, block);
  };
  if (std::ranges::none_of(plan.roles, hasItToo)) // the usual case
    return true;
  std::vector<bool> isOfParts = axesOfParts(plan, block);
  std::vector<AxisRange> own = boxOf(plan, plan.roles[role]);
  return std::ranges::none_of(plan.roles, [&](const Role &other) {
    if (!hasItToo(other))
      return false;
    std::vector<AxisRange> box = boxOf(plan, other);
    auto order = std::strong_ordering::equal; // order on the first axis where both differ
    for (size_t axis = 0; axis < box.size(); ++axis)
      if (!isOfParts[axis])
        order = order == 0 ? box[axis].begin <=> own[axis].begin : order;
      else if (box[axis].begin > own[axis].begin || box[axis].end < own[axis].end)
        return false; // the other role has other elements
    return order < 0;
  });
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

const Segment *stagedBy(const Role &role, const Segment &segment) {
  if (segment.before >= role.segments.size())
    return nullptr;
  const Segment &other = role.segments[segment.before];
  return other.before != kNone && &other != &segment ? &other : nullptr;
}

std::vector<CellPart> partsOfState(const Plan &plan, const Role &role, const Segment &segment) {
  std::vector<CellPart> parts = partsOfCells(plan, segment);
  const Segment *stage = stagedBy(role, segment);
  if (stage == nullptr)
    return parts;
  std::vector<CellPart> copied = partsOfCells(plan, *stage), staged(role.cells.size());
  for (const Segment::Boundary &out : stage->outs)
    if (uint32_t def = stage->values[out.value].def;
        def != kNone && stage->ops[def].kind == OpKind::Stage)
      staged[out.cell] = copied[stage->ops[def].operands[0]];
  for (CellPart &part : parts) {
    CellPart whole = part.cell != kNone ? staged[part.cell] : CellPart();
    std::optional<Moving> begin = sumOf(plan, whole.begin, part.begin);
    part = whole.cell != kNone && begin ? CellPart{whole.cell, *begin} : CellPart();
  }
  return parts;
}

} // namespace shardc::plan
