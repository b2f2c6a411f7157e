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

/// Of those axes, along which other roles have state of the block.
Axes axesOfHolders(Inspection &inspection, uint32_t role, const Role &part, size_t block,
                   Axes among) {
  const Plan &plan = inspection.plan();
  Axes axes = 0;
  for (uint32_t r = 0; r < plan.roles.size() && among != 0; ++r) {
    const std::vector<const Block *> &held = inspection.blocksInCheckpoint(r);
    if (r == role || std::ranges::find(held, &plan.blocks[block]) == held.end())
      continue;
    for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis) {
      AxisRange own = extentOf(plan, part, axis), other = extentOf(plan, plan.roles[r], axis);
      if (own.begin != other.begin || own.end != other.end)
        axes |= static_cast<Axes>(1u << axis);
    }
  }
  return axes & among;
}

} // namespace

Stages stagesOf(Inspection &inspection, uint32_t role, const Role &part) {
  const Plan &plan = inspection.plan();
  Stages stages;
  for (const Segment &segment : plan.roles[role].segments)
    for (const Op &op : segment.ops)
      if (op.channel >= 0 && plan.channels[static_cast<size_t>(op.channel)].isPair())
        stages.axes |= axesOf(plan, op.group);
  for (size_t block = 0; block < plan.blocks.size(); ++block)
    stages.sharedBy.push_back(axesOfHolders(inspection, role, part, block, stages.axes));
  stages.othersAddLosses = stages.axes != 0 && !addsLosses(plan.roles[role]) &&
                           std::ranges::any_of(plan.roles, addsLosses);
  return stages;
}

} // namespace shardc::plan::verifier
