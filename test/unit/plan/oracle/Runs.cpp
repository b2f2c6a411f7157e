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

std::vector<bool> followedCells(const Role &role) {
  std::vector<bool> isFollowed;
  for (const Cell &cell : role.cells)
    isFollowed.push_back(cell.slots > 1);
  for (const Segment &segment : role.segments) {
    for (const Segment::Boundary &in : segment.ins)
      isFollowed[in.cell] = isFollowed[in.cell] || in.shift != 0;
    for (const Segment::Boundary &out : segment.outs)
      isFollowed[out.cell] = isFollowed[out.cell] || out.shift != 0;
  }
  return isFollowed;
}

Batches batchesOf(const Role &role, const std::vector<bool> &isFollowed, const OneRun &run) {
  const Segment &segment = role.segments[run.segment];
  Batches batches;
  batches.of.resize(segment.values.size());
  // For each value, the microbatch of its cell's content.
  std::vector<std::optional<int64_t>> left(segment.values.size());
  for (const Segment::Boundary &in : segment.ins)
    if (isFollowed[in.cell])
      batches.of[in.value] = run.microbatch + in.shift;
  for (const Segment::Boundary &out : segment.outs)
    if (isFollowed[out.cell])
      left[out.value] = run.microbatch + out.shift;
  // If an op is skipped, its else value is stored in its result's cell, unless an op here reads it.
  std::vector<bool> isRead(segment.values.size());
  for (const Op &op : segment.ops)
    for (ValueId operand : op.operands)
      isRead[operand] = isRead[operand] || holds(op.pred, run.variant());
  for (size_t i = segment.ops.size(); i-- > 0;)
    for (const Tie &tie : segment.ops[i].ties)
      if (tie.kind == Tie::Else && !holds(segment.ops[i].pred, run.variant()) &&
          !isRead[tie.value] && !left[tie.value])
        left[tie.value] = left[segment.ops[i].results[tie.result]];
  auto fail = [&](const Op &op) {
    batches.problem =
        fmt::format("'{}' of segment {} mixes microbatches", opInfo(op).name, segment.name);
  };
  for (const Op &op : segment.ops) {
    std::optional<int64_t> own;
    if (op.kind == OpKind::BatchLoad || op.kind == OpKind::Recv)
      own = run.microbatch;
    if (op.kind == OpKind::Recv && left[op.results[0]])
      own = left[op.results[0]];
    for (ValueId operand : op.operands) {
      const std::optional<int64_t> &its = batches.of[operand];
      if (own && its && *own != *its)
        fail(op);
      own = its ? its : own;
    }
    for (ValueId result : op.results)
      batches.of[result] = own;
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && own && batches.of[tie.value] && *own != *batches.of[tie.value])
        fail(op);
  }
  for (const Segment::Boundary &out : segment.outs)
    if (isFollowed[out.cell] && batches.of[out.value] && batches.of[out.value] != left[out.value])
      batches.problem =
          fmt::format("'{}' is left for another microbatch", segment.values[out.value].name);
  return batches;
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

int64_t evaluationMicrobatches(const Plan &plan, int64_t readers) {
  const Job::Validation &job = plan.job.validation;
  if (job.fullValidation)
    return plan.job.derived.evalMicrobatches;
  int64_t micro = job.evalMicroBatchSize, all = job.evalGlobalBatchSize;
  micro = micro > 0 ? micro : plan.job.train.microBatchSize;
  all = all > 0 ? all : plan.job.train.globalBatchSize;
  int64_t each = micro * readers;
  return each > 0 && all % each == 0 ? all / each * job.evalIters : 0;
}

} // namespace shardc::plan::oracle
