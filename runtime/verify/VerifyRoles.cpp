// Compares the roles of a plan. Ranks that share the state of a block must update it with equal
// values. Stages of a pipeline must have different blocks and losses. To compare programs, each
// value gets a number: a hash of its op's attributes and its operands' numbers. The result of a
// collective is numbered by how often its members have met, since they compute it together. A role
// may have several coordinates on an axis along which other roles have one each, and sums over
// other axes may then differ. So ranks are compared part by part.
#include "runtime/verify/VerifySegmentSums.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "runtime/plan/Summary.h"

namespace shardc::plan::verifier {

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
  return x ^ (x >> 32);
}

/// The step state contains each rank's own sum of losses until the step ends. The number leaves
/// this sum out, because it must be equal on all ranks.
bool ValueNumbers::passesOn(const Op &op) {
  SumRole sum = opInfo(op).sum;
  return sum == SumRole::AddsLosses || sum == SumRole::AddsEvalLosses;
}

uint64_t ValueNumbers::ofOp(const Op &op) const {
  if (!isOn_)
    return 0;
  if (passesOn(op))
    return numbers_[op.operands[0]];
  uint64_t number = mixed(opInfo(op).index, op.operands.size());
  if (opInfo(op).takesIndex())
    number = mixed(number, static_cast<uint64_t>(op.group));
  for (const Attr &attr : op.attrs)
    number = mixed(mixed(number, static_cast<uint64_t>(attr.key)), static_cast<uint64_t>(attr.i));
  // Without `norm_replicated`, 'step.finish' takes the norm from the sums and not from `ss`.
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.kind != OpKind::StepFinish || i < 2 || op.getBool(AttrKey::norm_replicated))
      number = mixed(number, numbers_[op.operands[i]]);
  return number;
}

uint64_t ValueNumbers::ofMeeting(const Op &op) {
  if (!isOn_)
    return 0;
  uint64_t number = mixed(static_cast<uint64_t>(op.group), static_cast<uint64_t>(op.channel));
  number = mixed(number, ++meetings_[{op.group, op.channel}]);
  const std::vector<uint16_t> &axes = groupAt(plan_, op.group).axes;
  // Ranks with other coordinates on the remaining axes belong to another instance of the group.
  for (const AxisRange &range : part_.where)
    if (std::ranges::find(axes, range.axis) == axes.end())
      number = mixed(mixed(number, range.axis), static_cast<uint64_t>(range.begin));
  return number;
}

void ValueNumbers::addMeetings(const Segment &segment, const Variant &variant, uint64_t times) {
  for (const Op &op : segment.ops)
    if (opInfo(op).collective && op.kind != OpKind::Send && holds(op.pred, variant))
      meetings_[{op.group, op.channel}] += times;
}

namespace {

/// True if ranks of both roles have the same part of the block's state.
bool haveCommonState(const Plan &plan, const Role &a, const Role &b, int32_t block) {
  const Block &each = blockAt(plan, block);
  IndexRange x = Indices(plan, a).of(each.stateGroup), y = Indices(plan, b).of(each.stateGroup);
  return each.stateShard == each.numel || (x.first <= y.last && y.first <= x.last);
}

/// Checks that two roles with state in common update it with equal values.
void compare(Inspection &inspection, const PartUpdates &a, const PartUpdates &b) {
  const Plan &plan = inspection.plan();
  std::unordered_map<int32_t, std::vector<const Update *>> byBlock;
  for (const Update &update : b.updates)
    byBlock[update.block].push_back(&update);
  for (const Update &mine : a.updates) {
    auto at = byBlock.find(mine.block);
    if (at == byBlock.end() || !inspection.spend(at->second.size()) ||
        !haveCommonState(plan, a.part, b.part, mine.block))
      continue;
    const Update *other = at->second.front();
    if (std::ranges::any_of(at->second, [&](const Update *each) {
          return each->gradient == mine.gradient && each->state == mine.state;
        }))
      continue;
    note(inspection.add(finding::UpdatesDiffer, {b.role, other->segment, other->op},
                        plan.roles[a.role].name, plan.roles[b.role].name,
                        blockAt(plan, mine.block).name),
         "the other role updates it here", {a.role, mine.segment, mine.op});
  }
}

} // namespace

std::vector<Role> partsAlong(Inspection &inspection, const Role &role, Axes axes) {
  const Plan &plan = inspection.plan();
  std::vector<Role> parts(1);
  for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis) {
    if ((axes >> axis & 1) == 0)
      continue;
    AxisRange own = extentOf(plan, role, axis);
    std::set<int64_t> cuts = cutsIn(plan, own);
    cuts.insert({own.begin, own.end});
    if (!inspection.spend(parts.size() * cuts.size()))
      break;
    std::vector<Role> finer;
    for (const Role &part : parts)
      for (auto begin = cuts.begin(), end = std::next(begin); end != cuts.end(); ++begin, ++end) {
        finer.push_back(part);
        finer.back().where.push_back({axis, *begin, *end});
      }
    parts = std::move(finer);
  }
  return parts;
}

std::vector<Role> partsOfRole(Inspection &inspection, uint32_t role) {
  Axes divided = 0;
  for (const Role &each : inspection.plan().roles)
    for (const AxisRange &range : each.where)
      divided |= static_cast<Axes>(1u << range.axis);
  return partsAlong(inspection, inspection.plan().roles[role], divided);
}

bool haveUpdatesInCommon(const Plan &plan) {
  // For each block: a role that updates it.
  std::vector<uint32_t> updater(plan.blocks.size(), kNone);
  bool isAny = false;
  forEachOp(plan, [&](Spot at, const Segment &, const Op &op) {
    if (!opInfo(op).isOptimizer())
      return;
    uint32_t &role = updater[static_cast<size_t>(op.getInt(AttrKey::block))];
    isAny |= role != kNone && role != at.role;
    role = at.role;
  });
  return isAny;
}

void compareRoles(Inspection &inspection, const std::vector<PartUpdates> &updates) {
  for (size_t b = 1; b < updates.size() && inspection.size() == 0; ++b)
    for (size_t a = 0; a < b && inspection.size() == 0; ++a)
      if (updates[a].role != updates[b].role)
        compare(inspection, updates[a], updates[b]);
}

// ---- stages of a pipeline ----

namespace {

bool addsLosses(const Role &role) {
  return hasOp(role, [](const Op &op) { return opInfo(op).sum == SumRole::AddsLosses; });
}

/// Axes along which another of the roles has other coordinates than this part of a role.
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
      if (op.channel >= 0 && channelAt(plan, op.channel).isPair())
        stages.axes |= axesOf(plan, op.group);
  for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis)
    if (AxisRange own = extentOf(plan, part, axis); own.end - own.begin > 1)
      stages.axes &= static_cast<Axes>(~(1u << axis));
  for (size_t block = 0; block < plan.blocks.size(); ++block) {
    const std::vector<uint32_t> &holders = inspection.rolesThatLoad(block);
    auto isOther = [&](uint32_t holder) { return holder != role; };
    stages.isHeldByOthers.push_back(std::ranges::any_of(holders, isOther));
    stages.sharedBy.push_back(axesApart(plan, role, part, holders) & stages.axes);
  }
  stages.othersAddLosses = stages.axes != 0 && !addsLosses(plan.roles[role]) &&
                           std::ranges::any_of(plan.roles, addsLosses);
  return stages;
}

} // namespace shardc::plan::verifier
