// A scheduler for all roles of this process. Each role has a cursor: its current segment, the state
// of each op, and the ops of each stream that have not begun.
#include "runtime/exec/OpByOp.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Text.h"

namespace shardc::exec {

const plan::Segment &OpByOp::segmentOf(const Cursor &cursor) const {
  return executable_.segment(runs_[cursor.runs[cursor.at]].segment);
}

const BoundSegment &OpByOp::boundOf(const Cursor &cursor) const {
  const Run &run = runs_[cursor.runs[cursor.at]];
  return *executable_.bound(run.segment, run.instance);
}

OpObserver::Position OpByOp::positionOf(const Cursor &cursor, size_t op) const {
  const Run &run = runs_[cursor.runs[cursor.at]];
  return {run.segment, run.instance, run.params, static_cast<uint32_t>(op)};
}

/// Repeats these steps until all roles are done: 1. Each role executes ops until it reaches a
/// collective. 2. A collective begins once all of its members in this process have reached it. 3.
/// If neither step made progress, the executor waits for a collective with members in other
/// processes.
Status OpByOp::run(std::span<const Run> runs, const Around &around) {
  RETURN_IF_ERROR(executable_.backend().synchronize());
  runs_ = runs;
  around_ = &around;
  cursors_.clear();
  for (uint32_t role : executable_.rolesHere()) {
    Cursor &cursor = cursors_.emplace_back();
    cursor.role = role;
    for (size_t i = 0; i < runs.size(); ++i)
      if (&executable_.roleOfSegment(runs[i].segment) == &executable_.plan().roles[role])
        cursor.runs.push_back(i);
  }
  while (!std::ranges::all_of(cursors_, [this](const Cursor &each) { return isDone(each); })) {
    bool hasMoved = false;
    for (Cursor &cursor : cursors_) {
      ASSIGN_OR_RETURN(bool moved, advance(cursor));
      hasMoved = hasMoved || moved;
    }
    ASSIGN_OR_RETURN(bool haveMet, meet());
    if (!hasMoved && !haveMet)
      RETURN_IF_ERROR(awaitOne());
  }
  return Status::ok();
}

Result<bool> OpByOp::advance(Cursor &cursor) {
  bool hasMoved = false;
  while (!isDone(cursor)) {
    if (!cursor.isBegun)
      RETURN_IF_ERROR(begin(cursor));
    ASSIGN_OR_RETURN(bool moved, takeEnded(cursor));
    for (uint32_t op : readyOps(cursor))
      if (!isMeeting(cursor, op)) {
        RETURN_IF_ERROR(issue(cursor, op));
        for (hal::Event *event : eventsOf(cursor, op))
          RETURN_IF_ERROR(event->synchronize());
        RETURN_IF_ERROR(finishOp(cursor, op));
        moved = true;
        break; // the op may have made earlier ops ready
      }
    if (cursor.endedCount == cursor.states.size()) {
      RETURN_IF_ERROR(end(cursor));
      moved = true;
    }
    if (!moved)
      break;
    hasMoved = true;
  }
  return hasMoved;
}

Status OpByOp::begin(Cursor &cursor) {
  size_t index = cursor.runs[cursor.at];
  const Run &run = runs_[index];
  if (around_->before)
    RETURN_IF_ERROR(around_->before(index));
  RETURN_IF_ERROR(executable_.prepareOps(run.segment, run.instance, run.params));
  cursor.isBegun = true;
  const std::vector<plan::Op> &ops = segmentOf(cursor).ops;
  cursor.states.assign(ops.size(), State::Waiting);
  cursor.endedCount = 0;
  cursor.streams.assign(executable_.plan().streams.size(), {});
  for (uint32_t i = 0; i < ops.size(); ++i)
    cursor.streams[ops[i].stream].push_back(i);
  return observer_ ? observer_->beforeSegment(positionOf(cursor, 0)) : Status::ok();
}

Status OpByOp::end(Cursor &cursor) {
  size_t index = cursor.runs[cursor.at++];
  cursor.isBegun = false;
  return around_->after ? around_->after(index) : Status::ok();
}

std::vector<uint32_t> OpByOp::readyOps(const Cursor &cursor) const {
  const std::vector<plan::Op> &ops = segmentOf(cursor).ops;
  std::vector<uint32_t> ready;
  for (const std::deque<uint32_t> &stream : cursor.streams)
    if (!stream.empty() && cursor.states[stream.front()] == State::Waiting &&
        std::ranges::all_of(ops[stream.front()].waits, [&](uint32_t awaited) {
          return cursor.states[awaited] == State::Ended;
        }))
      ready.push_back(stream.front());
  std::ranges::sort(ready);
  return ready;
}

std::vector<uint32_t> OpByOp::begunOps(const Cursor &cursor) {
  std::vector<uint32_t> begun;
  for (const std::deque<uint32_t> &stream : cursor.streams)
    if (!stream.empty() && cursor.states[stream.front()] == State::Begun)
      begun.push_back(stream.front());
  return begun;
}

bool OpByOp::isMeeting(const Cursor &cursor, size_t op) const {
  const BoundOp &bound = boundOf(cursor).ops[op];
  return bound.kind == BoundOp::Collective && bound.channel->size() > 1;
}

Status OpByOp::issue(Cursor &cursor, size_t op) {
  const Run &run = runs_[cursor.runs[cursor.at]];
  cursor.states[op] = State::Begun;
  return executable_.issueAlone(run.segment, run.instance, op);
}

std::vector<hal::Event *> OpByOp::eventsOf(const Cursor &cursor, size_t op) const {
  return executable_.eventsOf(runs_[cursor.runs[cursor.at]].segment,
                              segmentOf(cursor).ops[op].stream);
}

Result<bool> OpByOp::takeEnded(Cursor &cursor) {
  bool hasOne = false;
  for (uint32_t op : begunOps(cursor))
    if (std::ranges::all_of(eventsOf(cursor, op), &hal::Event::isDone)) {
      RETURN_IF_ERROR(finishOp(cursor, op));
      hasOne = true;
    }
  return hasOne;
}

Status OpByOp::finishOp(Cursor &cursor, size_t op) {
  cursor.states[op] = State::Ended;
  ++cursor.endedCount;
  cursor.streams[segmentOf(cursor).ops[op].stream].pop_front();
  return observer_ ? observer_->afterOp(positionOf(cursor, op)) : Status::ok();
}

const OpByOp::Partners &OpByOp::partnersOf(uint32_t role, plan::ChannelId channel) {
  auto [at, isNew] = partners_.try_emplace({role, channel});
  Partners &partners = at->second;
  if (!isNew)
    return partners;
  const plan::Plan &plan = executable_.plan();
  for (size_t rank = 0; rank < executable_.rankCount(); ++rank) {
    if (&executable_.roleOf(rank) != &plan.roles[role])
      continue;
    for (int member : channelMembers(plan, channel, executable_.worldRank(rank))) {
      bool isHere = false;
      for (size_t other = 0; other < executable_.rankCount() && !isHere; ++other)
        isHere = executable_.worldRank(other) == member;
      partners.areAllHere = partners.areAllHere && isHere;
      uint32_t of = exec::roleOf(plan, member);
      if (isHere && std::ranges::find(partners.roles, of) == partners.roles.end())
        partners.roles.push_back(of);
    }
  }
  return partners;
}

Result<bool> OpByOp::meet() {
  bool hasOne = false;
  for (Cursor &cursor : cursors_) {
    if (isDone(cursor) || !cursor.isBegun)
      continue;
    for (uint32_t op : readyOps(cursor)) {
      if (!isMeeting(cursor, op) || cursor.states[op] != State::Waiting)
        continue;
      ASSIGN_OR_RETURN(bool met, meetAt(cursor, op));
      hasOne = hasOne || met;
    }
  }
  return hasOne;
}

std::optional<size_t> OpByOp::readyOn(const Cursor &cursor, plan::ChannelId channel) const {
  if (isDone(cursor) || !cursor.isBegun)
    return std::nullopt;
  for (uint32_t op : readyOps(cursor))
    if (segmentOf(cursor).ops[op].channel == channel && isMeeting(cursor, op))
      return op;
  return std::nullopt;
}

/// Begins the collective if every role that has members of it in this process has reached it.
/// Returns false, and issues nothing, if one has not. Partners may have partners of their own, as
/// neighbouring stages of a pipeline do, so the set grows until no new role is found. The
/// collective is finished here only if all members are here; otherwise takeEnded finishes it later.
Result<bool> OpByOp::meetAt(Cursor &cursor, size_t op) {
  plan::ChannelId channel = segmentOf(cursor).ops[op].channel;
  std::vector<std::pair<Cursor *, size_t>> parts = {{&cursor, op}};
  bool areAllHere = true;
  for (size_t i = 0; i < parts.size(); ++i) { // `parts` grows in this loop
    const Partners &partners = partnersOf(parts[i].first->role, channel);
    areAllHere = areAllHere && partners.areAllHere;
    for (uint32_t role : partners.roles) {
      Cursor &other = *std::ranges::find(cursors_, role, &Cursor::role);
      if (std::ranges::find(parts, &other, &std::pair<Cursor *, size_t>::first) != parts.end())
        continue;
      std::optional<size_t> its = readyOn(other, channel);
      if (!its)
        return false;
      parts.emplace_back(&other, *its);
    }
  }
  for (auto &[part, its] : parts)
    RETURN_IF_ERROR(issue(*part, its));
  if (!areAllHere)
    return true;
  for (auto &[part, its] : parts)
    for (hal::Event *event : eventsOf(*part, its))
      RETURN_IF_ERROR(event->synchronize());
  for (auto &[part, its] : parts)
    RETURN_IF_ERROR(finishOp(*part, its));
  return true;
}

Status OpByOp::awaitOne() const {
  std::vector<hal::Event *> events;
  bool isOneBegun = false;
  for (const Cursor &cursor : cursors_)
    for (uint32_t op : isDone(cursor) ? std::vector<uint32_t>() : begunOps(cursor)) {
      isOneBegun = true;
      for (hal::Event *event : eventsOf(cursor, op))
        if (!event->isDone())
          events.push_back(event);
    }
  if (!events.empty())
    return executable_.backend().waitForAny(events);
  return isOneBegun ? Status::ok() // it has ended since it was checked
                    : makeStatus(report::RolesWait, describe());
}

std::string OpByOp::describe() const {
  std::string text;
  for (const Cursor &cursor : cursors_) {
    if (isDone(cursor))
      continue;
    const plan::Segment &segment = segmentOf(cursor);
    std::string ops;
    for (uint32_t op : readyOps(cursor))
      ops += fmt::format("{}'{}'", ops.empty() ? "" : ", ",
                         plan::opLabel(executable_.plan(), segment, segment.ops[op]));
    text += fmt::format("{}role {} is at {} of {}", text.empty() ? "" : "; ",
                        executable_.plan().roles[cursor.role].name, ops.empty() ? "no op" : ops,
                        segment.name);
  }
  return text;
}

} // namespace shardc::exec
