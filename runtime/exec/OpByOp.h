// Runs segments op by op on the ranks of this process. An op has ended before one that is ordered
// behind it begins, and before it is shown. Ranks of one role take each op together. Where roles or
// processes meet in a collective, none waits for another one before it has done all that it can:
// so ops whose order in the plan would make roles wait for each other end all the same.
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
    uint32_t segment = 0; ///< as Executable numbers them
    plan::SegmentInstance instance;
    hal::LaunchParams params;
  };
  /// Callbacks before and after each run; the argument is its index.
  struct Around {
    std::function<Status(size_t run)> before, after;
  };

  /// All must outlive it. `observer` may be null.
  OpByOp(Executable &executable, OpObserver *observer)
      : executable_(executable), observer_(observer) {}

  /// The runs of each role in this order. InvalidInput, with the op at which each role stands, if
  /// they wait for each other.
  Status run(std::span<const Run> runs, const Around &around);

private:
  enum class State : uint8_t { Waiting, Begun, Ended };

  /// A role, and how far it is.
  struct Cursor {
    uint32_t role = 0;
    std::vector<size_t> runs;                  ///< indices of its runs
    size_t at = 0;                             ///< in `runs`
    bool isBegun = false;                      ///< the run at the cursor
    std::vector<State> states;                 ///< of its ops
    std::vector<std::deque<uint32_t>> streams; ///< ops of each that have not ended
    size_t endedCount = 0;
  };

  const plan::Segment &segmentOf(const Cursor &cursor) const;
  const BoundSegment &boundOf(const Cursor &cursor) const;
  bool isDone(const Cursor &cursor) const { return cursor.at == cursor.runs.size(); }
  OpObserver::Position positionOf(const Cursor &cursor, size_t op) const;

  Result<bool> advance(Cursor &cursor);
  Status begin(Cursor &cursor);
  Status end(Cursor &cursor);
  std::vector<uint32_t> readyOps(const Cursor &cursor) const;
  static std::vector<uint32_t> begunOps(const Cursor &cursor);
  bool isMeeting(const Cursor &cursor, size_t op) const;
  Status issue(Cursor &cursor, size_t op);
  Result<bool> takeEnded(Cursor &cursor);
  Status finishOp(Cursor &cursor, size_t op);
  std::vector<hal::Event *> eventsOf(const Cursor &cursor, size_t op) const;

  /// The roles here with ranks that take part in the collectives of a role's ranks.
  struct Partners {
    std::vector<uint32_t> roles;
    bool areAllHere = true; ///< no member is in another process
  };
  const Partners &partnersOf(uint32_t role, plan::ChannelId channel);
  Result<bool> meet();
  Result<bool> meetAt(Cursor &cursor, size_t op);
  std::optional<size_t> readyOn(const Cursor &cursor, plan::ChannelId channel) const;
  Status awaitOne() const;
  std::string describe() const;

  Executable &executable_;
  OpObserver *observer_;
  std::span<const Run> runs_;
  const Around *around_ = nullptr;
  std::vector<Cursor> cursors_;
  std::map<std::pair<uint32_t, plan::ChannelId>, Partners> partners_;
};

} // namespace shardc::exec
