// Executes the segments in the programs of this process' roles, microbatch by microbatch, and
// writes batches for segments that read them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/run/FeedRing.h"
#include "runtime/run/HostTimer.h"

namespace shardc::run {

class SegmentRunner {
public:
  /// All arguments must outlive it. `timer` counts the waits for the device.
  SegmentRunner(exec::Executable &executable, BatchSource &source, HostTimer &timer)
      : executable_(executable), source_(source), timer_(timer), visits_(executable.segmentCount()),
        feedOf_(executable.segmentCount()) {}

  /// Creates the feeds of segments that read batches. InvalidInput if a segment would read several
  /// feeds, or several segments the same feed.
  Status createFeeds();
  /// Sets how often the job had visited segments with this kind of feed before this process began.
  void setVisitsBefore(FeedKind kind, int64_t visits) { visitsBefore(kind) = visits; }
  BatchSource &source() { return source_; }

  /// Program nodes of a role that ranks of this process have.
  struct Part {
    uint32_t role;
    std::span<const plan::ProgramNode> nodes;
  };
  /// One run of a segment, for one microbatch.
  struct Run {
    uint32_t segment; ///< number of the segment in the Executable
    int64_t visit;    ///< visit of the segment, counted from the start of the series
    int64_t microbatch, microbatches;
  };
  /// A sequence of launches in the order in which they are enqueued. It is computed once.
  struct Series {
    std::vector<Run> runs;
    std::vector<std::pair<uint32_t, int64_t>> visits; ///< number of visits by segment
  };
  /// The runs and loops of all parts, which may wait for each other. One run of each part is taken
  /// in turn, so no part gets ahead of the others.
  Series seriesOf(std::span<const Part> parts) const;
  /// Executes a series; op by op if there is an observer.
  Status run(const Series &series, exec::OpObserver *observer);
  /// Like run(), for a visit that already has a number: visit `visit` of this process.
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
  /// Roles that wait for an earlier launch of their own, and their remaining runs.
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
  std::vector<int64_t> visits_;                   ///< by segment number
  std::vector<std::shared_ptr<FeedRing>> feedOf_; ///< by segment number
  std::array<int64_t, 2> visitsBefore_{};         ///< by FeedKind
};

} // namespace shardc::run
