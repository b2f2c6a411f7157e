#include "Room.h"

#include <map>
#include <set>
#include <vector>

#include "runtime/plan/Execution.h"

namespace shardc::plan::oracle {
namespace {

/// For each op, the ops that have ended when it starts: the op before it on its stream, the ops
/// that it waits for, and all that these waited for.
std::vector<std::set<uint32_t>> endedBefore(const Segment &segment) {
  std::vector<std::set<uint32_t>> ended(segment.ops.size());
  std::map<StreamId, uint32_t> last;
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    std::vector<uint32_t> awaited = op.waits;
    if (auto before = last.find(op.stream); before != last.end())
      awaited.push_back(before->second);
    for (uint32_t other : awaited) {
      ended[i].insert(other);
      ended[i].insert(ended[other].begin(), ended[other].end());
    }
    last[op.stream] = i;
  }
  return ended;
}

/// Finds kernels that do not fit the GPU together. Kernels of communicators wait for their peers,
/// so all kernels that may run together must fit.
std::string findNoRoom(const Plan &plan, const Segment &segment, Variant variant) {
  std::vector<std::set<uint32_t>> ended = endedBefore(segment);
  std::map<ChannelId, std::set<ChannelId>> beside;
  auto isKernel = [&](const Op &op) {
    return op.channel != kNoChannel && holds(op.pred, variant) && plan.groupSize(op.group) > 1;
  };
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    if (!isKernel(segment.ops[i]))
      continue;
    beside.try_emplace(segment.ops[i].channel);
    for (uint32_t j = 0; j < i; ++j)
      if (isKernel(segment.ops[j]) && segment.ops[i].channel != segment.ops[j].channel &&
          !ended[i].contains(j)) {
        beside[segment.ops[i].channel].insert(segment.ops[j].channel);
        beside[segment.ops[j].channel].insert(segment.ops[i].channel);
      }
  }
  auto takes = [&](ChannelId id) { return plan.channels[static_cast<size_t>(id)].multiprocessors; };
  for (const Op &op : segment.ops)
    if (isKernel(op) && takes(op.channel) == 0 &&
        (op.kind != OpKind::AllGather || plan.transportOf(op) != Transport::Ce))
      return "a kernel of " + plan.channels[static_cast<size_t>(op.channel)].name +
             " takes nothing";
  for (const auto &[channel, others] : beside) {
    int64_t sum = takes(channel);
    for (ChannelId other : others)
      sum += takes(other);
    if (takes(channel) > 0 && sum > plan.multiprocessors)
      return "kernels of channel " + plan.channels[static_cast<size_t>(channel)].name +
             " and of those beside it do not fit the device together";
  }
  return {};
}

/// Collects the variants in which a list of nodes runs the segment.
void collectVariants(const Role &role, const std::vector<ProgramNode> &nodes, uint32_t segment,
                     std::set<Variant> &found) {
  for (const ProgramNode &node : nodes) {
    collectVariants(role, node.children, segment, found);
    if (node.segment != segment)
      continue;
    if (!role.segments[segment].body || node.count == 1) {
      found.insert(Variant::Only);
      continue;
    }
    found.insert({Variant::First, Variant::Last});
    if (node.count > 2)
      found.insert(Variant::Middle);
  }
}

} // namespace

std::string findNoRoom(const Plan &plan) {
  bool isOnGpus = plan.multiprocessors > 0 || plan.needsBackend == "cuda";
  if (!isOnGpus || plan.level < Level::Scheduled)
    return {};
  for (const Role &role : plan.roles)
    for (uint32_t s = 0; s < role.segments.size(); ++s) {
      std::set<Variant> variants;
      collectVariants(role, role.program, s, variants);
      for (Variant variant : variants)
        if (std::string problem = findNoRoom(plan, role.segments[s], variant); !problem.empty())
          return problem;
    }
  return {};
}

} // namespace shardc::plan::oracle
