// Executes segments op by op on the ranks of this process. An op ends before the next op that is
// ordered after it begins, and before the observer sees it. All ranks of a role execute an op
// together. Before a role waits for another role or process in a collective, it executes everything
// else that it can. So roles do not wait for each other even if the plan orders independent ops
// differently. A scheduler for all roles of this process. Each role has a cursor: its current
// segment, the state of each op, and the ops of each stream that have not begun.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/exec/Executable.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Text.h"

namespace shardc::exec {

class OpByOp {
public:
  /// One run of a segment.
  struct Run {
    uint32_t segment = 0; ///< number of the segment in the Executable
    plan::SegmentInstance instance;
    hal::LaunchParams params;
  };
  /// Called before and after each run, with the index of the run.
  struct Around {
    std::function<Status(size_t run)> before, after;
  };

  /// All arguments must outlive this object. `observer` may be null.
  OpByOp(Executable &executable, OpObserver *observer)
      : executable_(executable), observer_(observer) {}

  /// Executes the runs of each role in this order. InvalidInput, with the op that each role has
  /// reached, if roles wait for each other.
  /// Repeats these steps until all roles are done: 1. Each role executes ops until it reaches a
  /// collective. 2. A collective begins once all of its members in this process have reached it. 3.
  /// If neither step made progress, the executor waits for a collective with members in other
  /// processes.
  Status run(std::span<const Run> runs, const Around &around) {
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

private:
  enum class State : uint8_t { Waiting, Begun, Ended };

  /// The progress of one role.
  struct Cursor {
    uint32_t role = 0;
    std::vector<size_t> runs;                  ///< indices of the role's runs
    size_t at = 0;                             ///< index in `runs` of the current run
    bool isBegun = false;                      ///< whether the current run has begun
    std::vector<State> states;                 ///< of the current run's ops
    std::vector<std::deque<uint32_t>> streams; ///< by stream: ops that have not ended
    size_t endedCount = 0;
  };

  const plan::Segment &segmentOf(const Cursor &cursor) const {
    return executable_.segment(runs_[cursor.runs[cursor.at]].segment);
  }

  const BoundSegment &boundOf(const Cursor &cursor) const {
    const Run &run = runs_[cursor.runs[cursor.at]];
    return *executable_.bound(run.segment, run.instance);
  }

  bool isDone(const Cursor &cursor) const { return cursor.at == cursor.runs.size(); }
  OpObserver::Position positionOf(const Cursor &cursor, size_t op) const {
    const Run &run = runs_[cursor.runs[cursor.at]];
    return {run.segment, run.instance, run.params, static_cast<uint32_t>(op)};
  }

  /// Executes everything that the role can execute without others. Returns false if there is
  /// nothing.
  Result<bool> advance(Cursor &cursor) {
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

  /// Waits for earlier work and sets the parameters of the run, so that the ops of the segment may
  /// be issued one at a time.
  Status begin(Cursor &cursor) {
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

  Status end(Cursor &cursor) {
    size_t index = cursor.runs[cursor.at++];
    cursor.isBegun = false;
    return around_->after ? around_->after(index) : Status::ok();
  }

  /// The ops at the heads of streams whose waits have all ended, in the plan's order.
  std::vector<uint32_t> readyOps(const Cursor &cursor) const {
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

  /// Collectives that have begun but not ended.
  static std::vector<uint32_t> begunOps(const Cursor &cursor) {
    std::vector<uint32_t> begun;
    for (const std::deque<uint32_t> &stream : cursor.streams)
      if (!stream.empty() && cursor.states[stream.front()] == State::Begun)
        begun.push_back(stream.front());
    return begun;
  }

  /// Whether the op is a collective with other members.
  bool isMeeting(const Cursor &cursor, size_t op) const {
    const BoundOp &bound = boundOf(cursor).ops[op];
    return bound.kind == BoundOp::Collective && bound.channel->size() > 1;
  }

  Status issue(Cursor &cursor, size_t op) {
    const Run &run = runs_[cursor.runs[cursor.at]];
    cursor.states[op] = State::Begun;
    return executable_.issueAlone(run.segment, run.instance, op);
  }

  /// Marks each collective whose work is done as ended. Returns whether there was one.
  Result<bool> takeEnded(Cursor &cursor) {
    bool hasOne = false;
    for (uint32_t op : begunOps(cursor))
      if (std::ranges::all_of(eventsOf(cursor, op), &hal::Event::isDone)) {
        RETURN_IF_ERROR(finishOp(cursor, op));
        hasOne = true;
      }
    return hasOne;
  }

  Status finishOp(Cursor &cursor, size_t op) {
    cursor.states[op] = State::Ended;
    ++cursor.endedCount;
    cursor.streams[segmentOf(cursor).ops[op].stream].pop_front();
    return observer_ ? observer_->afterOp(positionOf(cursor, op)) : Status::ok();
  }

  std::vector<hal::Event *> eventsOf(const Cursor &cursor, size_t op) const {
    return executable_.eventsOf(runs_[cursor.runs[cursor.at]].segment,
                                segmentOf(cursor).ops[op].stream);
  }

  /// The roles of this process whose ranks take part in the collectives of a role's ranks.
  struct Partners {
    std::vector<uint32_t> roles;
    bool areAllHere = true; ///< no member is in another process
  };
  /// The roles whose ranks are members of the channel's communicators, and whether all members are
  /// ranks of this process. The answer depends only on the plan, so it is computed once per role
  /// and channel.
  const Partners &partnersOf(uint32_t role, plan::ChannelId channel) {
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

  /// Begins each collective that all of its members in this process have reached. Returns whether
  /// there was one.
  Result<bool> meet() {
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

  /// Begins the collective if every role that has members of it in this process has reached it.
  /// Returns false, and issues nothing, if one has not. Partners may have partners of their own, as
  /// neighbouring stages of a pipeline do, so the set grows until no new role is found. The
  /// collective is finished here only if all members are here; otherwise takeEnded finishes it
  /// later.
  Result<bool> meetAt(Cursor &cursor, size_t op) {
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

  /// The op of the channel that the role has reached. There is at most one, since a channel's ops
  /// are ordered.
  std::optional<size_t> readyOn(const Cursor &cursor, plan::ChannelId channel) const {
    if (isDone(cursor) || !cursor.isBegun)
      return std::nullopt;
    for (uint32_t op : readyOps(cursor))
      if (segmentOf(cursor).ops[op].channel == channel && isMeeting(cursor, op))
        return op;
    return std::nullopt;
  }

  /// Waits until a collective with members in other processes has ended.
  Status awaitOne() const {
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

  /// Text for messages: the position of each role that is not done.
  std::string describe() const {
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

  Executable &executable_;
  OpObserver *observer_;
  std::span<const Run> runs_;
  const Around *around_ = nullptr;
  std::vector<Cursor> cursors_;
  std::map<std::pair<uint32_t, plan::ChannelId>, Partners> partners_;
};

} // namespace shardc::exec
