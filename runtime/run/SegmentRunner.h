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

  /// Makes the rings of the segments that read batches. InvalidInput where a segment would read
  /// several, or several would read one.
  Status createFeeds();
  /// How often the job has visited the segments that read such batches before this process began.
  void setVisitsBefore(FeedKind kind, int64_t visits) { visitsBefore(kind) = visits; }

  /// Nodes of the program of a role that ranks of this process have.
  struct Part {
    uint32_t role;
    std::span<const plan::ProgramNode> nodes;
  };
  /// The runs and loops of all parts, which may wait for each other; with an observer, op by op.
  /// Parts are enqueued in turns, a run of each: none gets further ahead than its program does.
  Status run(std::span<const Part> parts, exec::OpObserver *observer);
  /// The same for visits that have a number already: the `visit`-th of this process.
  Status runVisit(std::span<const Part> parts, int64_t visit, exec::OpObserver *observer);

private:
  /// One run of a segment.
  struct Run {
    uint32_t segment; ///< as Executable numbers them
    int64_t visit, microbatch, microbatches;
  };

  Status createFeedsOf(uint32_t role);
  Status createFeed(uint32_t segment, uint32_t cell);
  std::vector<Run> runsOf(const Part &part, std::optional<int64_t> visit);
  Status runAll(const std::vector<std::vector<Run>> &runs, exec::OpObserver *observer);
  Status runOne(const Run &run, exec::OpObserver *observer);
  int64_t &visitsBefore(FeedKind kind) { return visitsBefore_[static_cast<size_t>(kind)]; }

  exec::Executable &executable_;
  BatchSource &source_;
  HostTimer &timer_;
  std::vector<int64_t> visits_;                 ///< by segment's number
  std::vector<std::optional<FeedRing>> feedOf_; ///< by segment's number
  std::array<int64_t, 2> visitsBefore_{};       ///< by FeedKind
};

} // namespace shardc::run
