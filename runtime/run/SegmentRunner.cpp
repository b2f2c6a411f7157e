#include "runtime/run/SegmentRunner.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/plan/HostCells.h"

namespace shardc::run {
namespace {

using plan::ProgramNode;

int countRuns(const std::vector<ProgramNode> &nodes, uint32_t segment) {
  int count = 0;
  for (const ProgramNode &node : nodes)
    count += (node.segment == segment) + countRuns(node.children, segment);
  return count;
}

int64_t countLoads(const plan::Segment &segment) {
  return std::ranges::count(segment.ops, plan::OpKind::BatchLoad, &plan::Op::kind);
}

} // namespace

Status SegmentRunner::createFeeds() {
  const plan::Role &role = executable_.role();
  std::vector<bool> isTaken(role.cells.size());
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (const plan::Segment::Boundary &in : role.segments[s].ins) {
      if (!plan::isFeed(role.cells[in.cell]))
        continue;
      if (feedOf_[s] || countRuns(role.program, s) > 1 || countLoads(role.segments[s]) > 1)
        return makeStatus(report::PlanCannotRun,
                          "segment {} takes more than one series of microbatches",
                          role.segments[s].name);
      if (isTaken[in.cell])
        return makeStatus(report::PlanCannotRun,
                          "segment {} takes @{}, which another segment takes too",
                          role.segments[s].name, role.cells[in.cell].name);
      isTaken[in.cell] = true;
      RETURN_IF_ERROR(createFeed(s, in.cell));
    }
  return Status::ok();
}

Status SegmentRunner::createFeed(uint32_t segment, uint32_t cell) {
  bool isTraining = executable_.role().cells[cell].kind == plan::CellKind::Feed;
  ASSIGN_OR_RETURN(
      feedOf_[segment],
      FeedRing::create(executable_, segment, cell, isTraining ? FeedKind::Train : FeedKind::Eval));
  return Status::ok();
}

Status SegmentRunner::run(const ProgramNode &node, exec::OpObserver *observer) {
  if (node.kind != ProgramNode::Run && node.kind != ProgramNode::Start)
    return makeStatus(report::PlanCannotRun,
                      "a step contains something other than 'run' and 'every'");
  return runVisit(node, visits_[node.segment]++, observer);
}

Status SegmentRunner::runVisit(const ProgramNode &node, int64_t visit, exec::OpObserver *observer) {
  for (int64_t i = 0; i < node.count; ++i)
    RETURN_IF_ERROR(runMicrobatch(node, visit, i, observer));
  return Status::ok();
}

Status SegmentRunner::runMicrobatch(const ProgramNode &node, int64_t visit, int64_t microbatch,
                                    exec::OpObserver *observer) {
  const plan::Segment &segment = executable_.role().segments[node.segment];
  plan::Variant variant = plan::Variant::Only;
  if (segment.body && node.count > 1)
    variant = microbatch == 0                ? plan::Variant::First
              : microbatch == node.count - 1 ? plan::Variant::Last
                                             : plan::Variant::Middle;
  hal::LaunchParams params{visit, microbatch, node.count};
  std::optional<FeedRing> &feed = feedOf_[node.segment];
  if (feed) {
    RETURN_IF_ERROR(timer_.wait([&] { return feed->waitForSlot(visit, microbatch, node.count); }));
    RETURN_IF_ERROR(
        feed->write(source_, visit, visit + visitsBefore(feed->kind()), microbatch, node.count));
  }
  if (observer) {
    RETURN_IF_ERROR(executable_.runOpByOp(node.segment, variant, params, observer));
  } else {
    RETURN_IF_ERROR(timer_.wait([&] { return executable_.makeRoom(node.segment, variant); }));
    RETURN_IF_ERROR(executable_.launch(node.segment, variant, params));
  }
  return feed ? feed->markQueued(visit, microbatch, node.count) : Status::ok();
}

} // namespace shardc::run
