#include "Runs.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardc::plan::oracle {
namespace {

int64_t namedIn(const std::vector<ProgramNode> &nodes, uint32_t segment) {
  int64_t count = 0;
  for (const ProgramNode &node : nodes) {
    if (node.microbatch && node.segment == segment)
      ++count;
    if (node.kind == ProgramNode::Loop)
      count += node.count * namedIn(node.children, segment);
  }
  return count;
}

void add(const Role &role, const ProgramNode &node, const std::vector<ProgramNode> &all,
         int64_t iteration, std::vector<OneRun> &runs) {
  if (node.kind == ProgramNode::Loop) {
    for (int64_t i = 0; i < node.count; ++i)
      for (const ProgramNode &child : node.children)
        add(role, child, all, i, runs);
  } else if (node.microbatch) {
    runs.push_back({node.segment, node.microbatch->coef * iteration + node.microbatch->base,
                    namedIn(all, node.segment), true, &node});
  } else {
    bool isBody = role.segments[node.segment].body;
    for (int64_t i = 0; i < node.count; ++i)
      runs.push_back({node.segment, isBody ? i : 0, isBody ? node.count : 1, false, &node});
  }
}

} // namespace

int64_t longestLoop(const Plan &plan) {
  int64_t count = 0;
  for (const Role &role : plan.roles)
    for (const ProgramNode &node : role.program)
      if (node.kind == ProgramNode::Steps)
        count = std::max(count, node.count);
  return count;
}

std::vector<OneRun> runsOf(const Role &role, const ProgramNode &node,
                           const std::vector<ProgramNode> &all) {
  std::vector<OneRun> runs;
  add(role, node, all, 0, runs);
  return runs;
}

std::vector<int64_t> membersOf(const Plan &plan, const Op &op, const std::vector<int64_t> &group,
                               int64_t rank) {
  if (op.channel < 0 || plan.channels[static_cast<size_t>(op.channel)].pair[0] < 0)
    return group;
  std::vector<int64_t> members;
  for (int32_t index : plan.channels[static_cast<size_t>(op.channel)].pair)
    if (static_cast<size_t>(index) < group.size())
      members.push_back(group[static_cast<size_t>(index)]);
  bool isOne = members.size() == 2 && std::ranges::find(members, rank) != members.end();
  return isOne ? members : std::vector<int64_t>();
}

} // namespace shardc::plan::oracle
