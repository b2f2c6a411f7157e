// Runs the segments of the programs of this process' roles, microbatch by microbatch, and feeds
// those that read batches.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/run/FeedRing.h"
#include "runtime/run/HostTimer.h"

namespace shardc::run {

class SegmentRunner {
public:
  /// All outlive it. `timer` counts the waits for the device.
  SegmentRunner(exec::Executable &executable, BatchSource &source, HostTimer &timer)
      : executable_(executable), source_(source), timer_(timer), visits_(executable.segmentCount()),
        feedOf_(executable.segmentCount()) {}

  /// Creates the feeds of segments that read batches. InvalidInput if a segment would read several,
  /// or several segments one.
  Status createFeeds();
  /// Sets how often the job visited segments that read such batches before this process began.
  void setVisitsBefore(FeedKind kind, int64_t visits) { visitsBefore(kind) = visits; }
  BatchSource &source() { return source_; }

  /// Nodes of the program of a role that ranks of this process have.
  struct Part {
    uint32_t role;
    std::span<const plan::ProgramNode> nodes;
  };
  /// One run of a segment.
  struct Run {
    uint32_t segment; ///< as Executable numbers them
    int64_t visit;    ///< of the segment, since the series began
    int64_t microbatch, microbatches;
  };
  /// A sequence of launches in the order in which they are enqueued. It is computed once.
  struct Series {
    std::vector<Run> runs;
    std::vector<std::pair<uint32_t, int64_t>> visits; ///< how often each segment is visited
  };
  /// The runs and loops of all parts, which may wait for each other. Parts take turns, a run of
  /// each: none gets further ahead than its program does.
  Series seriesOf(std::span<const Part> parts) const;
  /// Runs a series; op by op if there is an observer.
  Status run(const Series &series, exec::OpObserver *observer);
  /// The same for visits that have a number already: the `visit`-th of this process.
  Status runVisit(const Series &series, int64_t visit, exec::OpObserver *observer);

private:
  Status createFeedsOf(uint32_t role);
  Status createFeed(uint32_t segment, uint32_t cell);
  std::vector<Run> runsOf(const Part &part, std::vector<int64_t> &visits) const;
  template <typename VisitOf>
  Status runAll(const Series &series, VisitOf visitOf, exec::OpObserver *observer);
  template <typename VisitOf>
  Status runOpByOp(const Series &series, VisitOf visitOf, exec::OpObserver &observer);
  plan::SegmentInstance instanceOf(const Run &run) const;
  static hal::LaunchParams paramsOf(const Run &run);
  /// Roles that wait for an earlier launch of theirs, and their runs that are still to come.
  struct Held {
    std::vector<const plan::Role *> roles;
    std::vector<hal::Event *> awaited;
    std::vector<Run> runs;
  };
  Status launchOrHold(const Run &run, Held &held);
  Status launch(const Run &run);
  Status feed(const Run &run);
  Status markQueued(const Run &run);
  int64_t &visitsBefore(FeedKind kind) { return visitsBefore_[static_cast<size_t>(kind)]; }

  exec::Executable &executable_;
  BatchSource &source_;
  HostTimer &timer_;
  std::vector<int64_t> visits_;                 ///< by segment's number
  std::vector<std::optional<FeedRing>> feedOf_; ///< by segment's number
  std::array<int64_t, 2> visitsBefore_{};       ///< by FeedKind
};

} // namespace shardc::run
