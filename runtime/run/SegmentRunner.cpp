#include "runtime/run/SegmentRunner.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Variants.h"

namespace shardc::run {
namespace {

using plan::ProgramNode;

/// Series of microbatches for which the segment runs: the runs of a step that name theirs are one.
int countSeries(const std::vector<ProgramNode> &nodes, uint32_t segment) {
  int count = 0;
  bool hasNamed = false;
  plan::forEachRun(nodes, [&](const ProgramNode &node, int64_t) {
    hasNamed = hasNamed || (node.segment == segment && node.microbatch);
    return !hasNamed;
  });
  for (const ProgramNode &node : nodes) {
    count += node.segment == segment && !node.microbatch;
    if (node.kind != ProgramNode::Loop)
      count += countSeries(node.children, segment);
  }
  return count + hasNamed;
}

int64_t countLoads(const plan::Segment &segment) {
  return std::ranges::count(segment.ops, plan::OpKind::BatchLoad, &plan::Op::kind);
}

} // namespace

Status SegmentRunner::createFeeds() {
  for (uint32_t role : executable_.rolesHere())
    RETURN_IF_ERROR(createFeedsOf(role));
  return Status::ok();
}

Status SegmentRunner::createFeedsOf(uint32_t index) {
  const plan::Role &role = executable_.plan().roles[index];
  std::vector<bool> isTaken(role.cells.size());
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (const plan::Segment::Boundary &in : role.segments[s].ins) {
      uint32_t number = executable_.numberOf(index, s);
      if (!plan::isFeed(role.cells[in.cell]))
        continue;
      if (feedOf_[number] || countSeries(role.program, s) > 1 || countLoads(role.segments[s]) > 1)
        return makeStatus(report::PlanCannotRun,
                          "segment {} takes more than one series of microbatches",
                          role.segments[s].name);
      if (isTaken[in.cell])
        return makeStatus(report::PlanCannotRun,
                          "segment {} takes @{}, which another segment takes too",
                          role.segments[s].name, role.cells[in.cell].name);
      isTaken[in.cell] = true;
      RETURN_IF_ERROR(createFeed(number, in.cell));
    }
  return Status::ok();
}

Status SegmentRunner::createFeed(uint32_t segment, uint32_t cell) {
  bool isTraining = executable_.roleOfSegment(segment).cells[cell].kind == plan::CellKind::Feed;
  ASSIGN_OR_RETURN(
      feedOf_[segment],
      FeedRing::create(executable_, segment, cell, isTraining ? FeedKind::Train : FeedKind::Eval));
  return Status::ok();
}

Status SegmentRunner::run(std::span<const Part> parts, exec::OpObserver *observer) {
  std::vector<std::vector<Run>> runs;
  for (const Part &part : parts)
    runs.push_back(runsOf(part, std::nullopt));
  return runAll(runs, observer);
}

Status SegmentRunner::runVisit(std::span<const Part> parts, int64_t visit,
                               exec::OpObserver *observer) {
  std::vector<std::vector<Run>> runs;
  for (const Part &part : parts)
    runs.push_back(runsOf(part, visit));
  return runAll(runs, observer);
}

/// In the order of the program. Runs that name their microbatch are one visit of their segment.
std::vector<SegmentRunner::Run> SegmentRunner::runsOf(const Part &part,
                                                      std::optional<int64_t> visit) {
  const plan::Role &role = executable_.plan().roles[part.role];
  std::vector<ProgramNode> nodes(part.nodes.begin(), part.nodes.end());
  std::vector<int64_t> named = plan::namedRuns(role, nodes);
  std::vector<std::optional<int64_t>> visitOf(role.segments.size());
  std::vector<Run> runs;
  auto next = [&](uint32_t number) { return visit ? *visit : visits_[number]++; };
  auto add = [&](const ProgramNode &node, int64_t turn) {
    uint32_t number = executable_.numberOf(part.role, node.segment);
    if (node.microbatch) {
      std::optional<int64_t> &own = visitOf[node.segment];
      own = own ? own : next(number);
      runs.push_back({number, *own, node.microbatch->at(turn), named[node.segment]});
      return true;
    }
    int64_t own = next(number);
    for (int64_t i = 0; i < node.count; ++i)
      runs.push_back({number, own, i, node.count});
    return true;
  };
  for (const ProgramNode &node : part.nodes) {
    if (node.kind == ProgramNode::Start)
      add(node, 0);
    else if (node.kind == ProgramNode::Run || node.kind == ProgramNode::Loop)
      plan::forEachRun({node}, add);
  }
  return runs;
}

Status SegmentRunner::runAll(const std::vector<std::vector<Run>> &runs,
                             exec::OpObserver *observer) {
  size_t most = 0;
  for (const std::vector<Run> &each : runs)
    most = std::max(most, each.size());
  for (size_t i = 0; i < most; ++i)
    for (const std::vector<Run> &each : runs)
      if (i < each.size())
        RETURN_IF_ERROR(runOne(each[i], observer));
  return Status::ok();
}

Status SegmentRunner::runOne(const Run &run, exec::OpObserver *observer) {
  plan::SegmentInstance instance =
      executable_.instanceFor(run.segment, run.microbatch, run.microbatches);
  hal::LaunchParams params{run.visit, run.microbatch, run.microbatches};
  std::optional<FeedRing> &feed = feedOf_[run.segment];
  if (feed) {
    RETURN_IF_ERROR(timer_.wait(
        [&] { return feed->waitForSlot(run.visit, run.microbatch, run.microbatches); }));
    RETURN_IF_ERROR(feed->write(source_, run.visit, run.visit + visitsBefore(feed->kind()),
                                run.microbatch, run.microbatches));
  }
  if (observer) {
    RETURN_IF_ERROR(executable_.runOpByOp(run.segment, instance, params, observer));
  } else {
    RETURN_IF_ERROR(timer_.wait([&] { return executable_.makeRoom(run.segment, instance); }));
    RETURN_IF_ERROR(executable_.launch(run.segment, instance, params));
  }
  return feed ? feed->markQueued(run.visit, run.microbatch, run.microbatches) : Status::ok();
}

} // namespace shardc::run
