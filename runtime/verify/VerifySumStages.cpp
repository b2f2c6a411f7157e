// What other stages of a pipeline have of the blocks and the losses of a role.
#include <algorithm>

#include "runtime/plan/Summary.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

bool addsLosses(const Role &role) {
  return std::ranges::any_of(role.segments, [](const Segment &segment) {
    return std::ranges::any_of(
        segment.ops, [](const Op &op) { return opInfo(op.kind).sum == SumRole::AddsLosses; });
  });
}

/// By block, other roles that have its state.
std::vector<std::vector<uint32_t>> holdersBeside(Inspection &inspection, uint32_t role) {
  const Plan &plan = inspection.plan();
  std::vector<std::vector<uint32_t>> holders(plan.blocks.size());
  for (uint32_t r = 0; r < plan.roles.size(); ++r) {
    if (r == role)
      continue;
    for (const Block *block : inspection.blocksInCheckpoint(r)) {
      if (block == nullptr)
        continue;
      std::vector<uint32_t> &of = holders[static_cast<size_t>(block - plan.blocks.data())];
      if (of.empty() || of.back() != r)
        of.push_back(r);
    }
  }
  return holders;
}

/// Axes along which the roles have other ranks than the part.
Axes axesApart(const Plan &plan, const Role &part, const std::vector<uint32_t> &roles) {
  Axes axes = 0;
  for (uint32_t r : roles)
    for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis) {
      AxisRange own = extentOf(plan, part, axis), other = extentOf(plan, plan.roles[r], axis);
      if (own.begin != other.begin || own.end != other.end)
        axes |= static_cast<Axes>(1u << axis);
    }
  return axes;
}

} // namespace

Stages stagesOf(Inspection &inspection, uint32_t role, const Role &part) {
  const Plan &plan = inspection.plan();
  Stages stages;
  for (const Segment &segment : plan.roles[role].segments)
    for (const Op &op : segment.ops)
      if (op.channel >= 0 && plan.channels[static_cast<size_t>(op.channel)].isPair())
        stages.axes |= axesOf(plan, op.group);
  for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis)
    if (AxisRange own = extentOf(plan, part, axis); own.end - own.begin > 1)
      stages.axes &= static_cast<Axes>(~(1u << axis));
  for (const std::vector<uint32_t> &holders : holdersBeside(inspection, role)) {
    stages.sharedBy.push_back(axesApart(plan, part, holders) & stages.axes);
    stages.isHeldByOthers.push_back(!holders.empty());
  }
  stages.othersAddLosses = stages.axes != 0 && !addsLosses(plan.roles[role]) &&
                           std::ranges::any_of(plan.roles, addsLosses);
  return stages;
}

} // namespace shardc::plan::verifier
