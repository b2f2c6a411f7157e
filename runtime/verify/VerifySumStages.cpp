// What other stages of a pipeline have of the blocks and the losses of a role.
#include <algorithm>

#include "runtime/plan/Summary.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

bool addsLosses(const Role &role) {
  return std::ranges::any_of(role.segments, [](const Segment &segment) {
    return std::ranges::any_of(segment.ops,
                               [](const Op &op) { return opInfo(op).sum == SumRole::AddsLosses; });
  });
}

/// Axes along which other ones of the roles have other ranks than this part of a role.
Axes axesApart(const Plan &plan, uint32_t role, const Role &part,
               const std::vector<uint32_t> &roles) {
  Axes axes = 0;
  for (uint32_t r : roles)
    for (uint16_t axis = 0; axis < plan.mesh.size() && r != role; ++axis) {
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
  for (size_t block = 0; block < plan.blocks.size(); ++block) {
    const std::vector<uint32_t> &holders = inspection.rolesThatSave(block);
    auto isOther = [&](uint32_t holder) { return holder != role; };
    stages.isHeldByOthers.push_back(std::ranges::any_of(holders, isOther));
    stages.sharedBy.push_back(axesApart(plan, role, part, holders) & stages.axes);
  }
  stages.othersAddLosses = stages.axes != 0 && !addsLosses(plan.roles[role]) &&
                           std::ranges::any_of(plan.roles, addsLosses);
  return stages;
}

} // namespace shardc::plan::verifier
