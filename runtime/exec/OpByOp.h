// Executes segments op by op on the ranks of this process. An op ends before the next op that is
// ordered after it begins, and before the observer sees it. All ranks of a role execute an op
// together. Before a role waits for another role or process in a collective, it executes everything
// else that it can. So roles do not wait for each other even if the plan orders independent ops
// differently.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "runtime/exec/Executable.h"

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
  Status run(std::span<const Run> runs, const Around &around);

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

  const plan::Segment &segmentOf(const Cursor &cursor) const;
  const BoundSegment &boundOf(const Cursor &cursor) const;
  bool isDone(const Cursor &cursor) const { return cursor.at == cursor.runs.size(); }
  OpObserver::Position positionOf(const Cursor &cursor, size_t op) const;

  /// Executes everything that the role can execute without others. Returns false if there is
  /// nothing.
  Result<bool> advance(Cursor &cursor);
  /// Waits for earlier work and sets the parameters of the run, so that the ops of the segment may
  /// be issued one at a time.
  Status begin(Cursor &cursor);
  Status end(Cursor &cursor);
  /// The ops at the heads of streams whose waits have all ended, in the plan's order.
  std::vector<uint32_t> readyOps(const Cursor &cursor) const;
  /// Collectives that have begun but not ended.
  static std::vector<uint32_t> begunOps(const Cursor &cursor);
  /// Whether the op is a collective with other members.
  bool isMeeting(const Cursor &cursor, size_t op) const;
  Status issue(Cursor &cursor, size_t op);
  /// Marks each collective whose work is done as ended. Returns whether there was one.
  Result<bool> takeEnded(Cursor &cursor);
  Status finishOp(Cursor &cursor, size_t op);
  std::vector<hal::Event *> eventsOf(const Cursor &cursor, size_t op) const;

  /// The roles of this process whose ranks take part in the collectives of a role's ranks.
  struct Partners {
    std::vector<uint32_t> roles;
    bool areAllHere = true; ///< no member is in another process
  };
  /// The roles whose ranks are members of the channel's communicators, and whether all members are
  /// ranks of this process. The answer depends only on the plan, so it is computed once per role
  /// and channel.
  const Partners &partnersOf(uint32_t role, plan::ChannelId channel);
  /// Begins each collective that all of its members in this process have reached. Returns whether
  /// there was one.
  Result<bool> meet();
  Result<bool> meetAt(Cursor &cursor, size_t op);
  /// The op of the channel that the role has reached. There is at most one, since a channel's ops
  /// are ordered.
  std::optional<size_t> readyOn(const Cursor &cursor, plan::ChannelId channel) const;
  /// Waits until a collective with members in other processes has ended.
  Status awaitOne() const;
  /// Text for messages: the position of each role that is not done.
  std::string describe() const;

  Executable &executable_;
  OpObserver *observer_;
  std::span<const Run> runs_;
  const Around *around_ = nullptr;
  std::vector<Cursor> cursors_;
  std::map<std::pair<uint32_t, plan::ChannelId>, Partners> partners_;
};

} // namespace shardc::exec
