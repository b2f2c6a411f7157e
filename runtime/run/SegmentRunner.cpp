// Turns the tree of program nodes into a flat series of launches, and feeds each launch that reads
// a batch.
#include "runtime/run/SegmentRunner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/Reports.h"
#include "runtime/exec/OpByOp.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Variants.h"

namespace shardc::run {
namespace {

using plan::ProgramNode;

int64_t countLoads(const plan::Segment &segment) {
  return std::ranges::count(segment.ops, plan::OpKind::BatchLoad, &plan::Op::kind);
}

} // namespace

Status SegmentRunner::createFeeds() {
  for (uint32_t role : executable_.rolesHere())
    RETURN_IF_ERROR(createFeedsOf(role));
  return Status::ok();
}

/// A feed belongs to one segment, or to several that share the microbatches of a step. They must be
/// taken in one series.
Status SegmentRunner::createFeedsOf(uint32_t index) {
  const plan::Role &role = executable_.plan().roles[index];
  std::map<uint32_t, uint32_t> takerOf; // by cell: the first segment
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (const plan::Segment::Boundary &in : role.segments[s].ins) {
      uint32_t number = executable_.numberOf(index, s);
      if (!plan::isFeed(role.cells[in.cell]))
        continue;
      if (feedOf_[number] || plan::countSeries(role.program, s) > 1 ||
          countLoads(role.segments[s]) > 1)
        return makeStatus(report::PlanCannotRun,
                          "segment {} takes more than one series of microbatches",
                          role.segments[s].name);
      auto [taker, isFirst] = takerOf.try_emplace(in.cell, s);
      if (!isFirst && !plan::shareMicrobatches(role, taker->second, s))
        return makeStatus(report::PlanCannotRun,
                          "segment {} takes @{}, which another segment takes too",
                          role.segments[s].name, role.cells[in.cell].name);
      if (isFirst)
        RETURN_IF_ERROR(createFeed(number, in.cell));
      else
        feedOf_[number] = feedOf_[executable_.numberOf(index, taker->second)];
    }
  return Status::ok();
}

Status SegmentRunner::createFeed(uint32_t segment, uint32_t cell) {
  bool isTraining = executable_.roleOfSegment(segment).cells[cell].kind == plan::CellKind::Feed;
  ASSIGN_OR_RETURN(FeedRing ring, FeedRing::create(executable_, segment, cell,
                                                   isTraining ? FeedKind::Train : FeedKind::Eval));
  feedOf_[segment] = std::make_shared<FeedRing>(std::move(ring));
  return Status::ok();
}

/// The runs of a part in program order. All runs of a segment that name their microbatch count as
/// one visit; every other node of the program is a visit of its own.
std::vector<SegmentRunner::Run> SegmentRunner::runsOf(const Part &part,
                                                      std::vector<int64_t> &visits) const {
  const plan::Role &role = executable_.plan().roles[part.role];
  std::vector<ProgramNode> nodes(part.nodes.begin(), part.nodes.end());
  std::vector<int64_t> named = plan::namedMicrobatches(role, nodes);
  std::vector<std::optional<int64_t>> visitOf(role.segments.size());
  std::vector<Run> runs;
  auto add = [&](const ProgramNode &node, int64_t iteration) {
    uint32_t number = executable_.numberOf(part.role, node.segment);
    if (node.microbatch) {
      std::optional<int64_t> &own = visitOf[node.segment];
      own = own ? own : visits[number]++;
      runs.push_back({number, *own, node.microbatch->at(iteration), named[node.segment]});
      return true;
    }
    int64_t own = visits[number]++;
    for (int64_t i = 0; i < node.count; ++i)
      runs.push_back({number, own, i, node.count});
    return true;
  };
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Start)
      add(node, 0);
    else if (node.kind == ProgramNode::Run || node.kind == ProgramNode::Loop)
      plan::forEachRun({node}, add);
  }
  return runs;
}

SegmentRunner::Series SegmentRunner::seriesOf(std::span<const Part> parts) const {
  std::vector<int64_t> visits(visits_.size());
  std::vector<std::vector<Run>> runs;
  size_t most = 0;
  for (const Part &part : parts) {
    runs.push_back(runsOf(part, visits));
    most = std::max(most, runs.back().size());
  }
  Series series;
  for (size_t i = 0; i < most; ++i)
    for (const std::vector<Run> &each : runs)
      if (i < each.size())
        series.runs.push_back(each[i]);
  for (uint32_t segment = 0; segment < visits.size(); ++segment)
    if (visits[segment] > 0)
      series.visits.emplace_back(segment, visits[segment]);
  return series;
}

Status SegmentRunner::run(const Series &series, exec::OpObserver *observer) {
  RETURN_IF_ERROR(runAll(
      series, [this](const Run &run) { return visits_[run.segment] + run.visit; }, observer));
  for (const auto &[segment, count] : series.visits)
    visits_[segment] += count;
  return Status::ok();
}

Status SegmentRunner::runVisit(const Series &series, int64_t visit, exec::OpObserver *observer) {
  return runAll(
      series, [visit](const Run &) { return visit; }, observer);
}

/// Launches the runs of a series. Those that launchOrHold() holds are tried again whenever one of
/// the awaited events is reached.
template <typename VisitOf>
Status SegmentRunner::runAll(const Series &series, VisitOf visitOf, exec::OpObserver *observer) {
  if (observer)
    return runOpByOp(series, visitOf, *observer);
  Held held;
  for (Run run : series.runs) {
    run.visit = visitOf(run);
    RETURN_IF_ERROR(launchOrHold(run, held));
  }
  while (!held.runs.empty()) {
    RETURN_IF_ERROR(timer_.wait([&] { return executable_.backend().waitForAny(held.awaited); }));
    Held before = std::exchange(held, {});
    for (const Run &run : before.runs)
      RETURN_IF_ERROR(launchOrHold(run, held));
  }
  return Status::ok();
}

/// Launches a run, or holds its role if the role's earlier launch has not ended. Other roles
/// continue, since that launch may need their transfers.
Status SegmentRunner::launchOrHold(const Run &run, Held &held) {
  const plan::Role *role = &executable_.roleOfSegment(run.segment);
  if (std::ranges::find(held.roles, role) == held.roles.end()) {
    auto events = executable_.awaitedByLaunch(run.segment, instanceOf(run));
    if (events.empty())
      return launch(run);
    held.roles.push_back(role);
    held.awaited.insert(held.awaited.end(), events.begin(), events.end());
  }
  held.runs.push_back(run);
  return Status::ok();
}

Status SegmentRunner::launch(const Run &run) {
  RETURN_IF_ERROR(feed(run));
  plan::SegmentInstance instance = instanceOf(run);
  RETURN_IF_ERROR(timer_.wait([&] { return executable_.makeRoom(run.segment, instance); }));
  RETURN_IF_ERROR(executable_.launch(run.segment, instance, paramsOf(run)));
  return markQueued(run);
}

/// For checks and dumps: the observer sees each op after it has ended and before the next begins.
template <typename VisitOf>
Status SegmentRunner::runOpByOp(const Series &series, VisitOf visitOf, exec::OpObserver &observer) {
  std::vector<Run> runs = series.runs;
  std::vector<exec::OpByOp::Run> steps;
  for (Run &run : runs) {
    run.visit = visitOf(run);
    steps.push_back({run.segment, instanceOf(run), paramsOf(run)});
  }
  exec::OpByOp ops(executable_, &observer);
  return ops.run(steps, {[&](size_t i) { return feed(runs[i]); },
                         [&](size_t i) { return markQueued(runs[i]); }});
}

plan::SegmentInstance SegmentRunner::instanceOf(const Run &run) const {
  return executable_.instanceFor(run.segment, run.microbatch, run.microbatches);
}

hal::LaunchParams SegmentRunner::paramsOf(const Run &run) {
  return {run.visit, run.microbatch, run.microbatches};
}

/// Writes the batch that the run reads, if any.
Status SegmentRunner::feed(const Run &run) {
  const std::shared_ptr<FeedRing> &feed = feedOf_[run.segment];
  if (!feed)
    return Status::ok();
  RETURN_IF_ERROR(
      timer_.wait([&] { return feed->waitForSlot(run.visit, run.microbatch, run.microbatches); }));
  return feed->write(source_, run.visit, run.visit + visitsBefore(feed->kind()), run.microbatch,
                     run.microbatches);
}

Status SegmentRunner::markQueued(const Run &run) {
  const std::shared_ptr<FeedRing> &feed = feedOf_[run.segment];
  return feed ? feed->markQueued(run.visit, run.microbatch, run.microbatches) : Status::ok();
}

} // namespace shardc::run
