// Runs the segments of a role's program, microbatch by microbatch, and feeds those that read
// batches.
#pragma once

#include <optional>
#include <vector>

#include "runtime/run/FeedRing.h"
#include "runtime/run/HostTimer.h"

namespace shardc::run {

class SegmentRunner {
public:
  /// All outlive it. `timer` counts the waits for the device.
  SegmentRunner(exec::Executable &executable, BatchSource &source, HostTimer &timer)
      : executable_(executable), source_(source), timer_(timer),
        visits_(executable.role().segments.size()), feedOf_(executable.role().segments.size()) {}

  /// Makes the rings of the segments that read batches. InvalidInput where a segment would read
  /// several, or several would read one.
  Status createFeeds();
  /// How often the job has visited the segments that read such batches before this process began.
  void setVisitsBefore(FeedKind kind, int64_t visits) { visitsBefore(kind) = visits; }

  /// All microbatches of a body, or a segment as often as the node says; with an observer, op by
  /// op.
  Status run(const plan::ProgramNode &node, exec::OpObserver *observer);
  /// The same for a visit that has a number already: the `visit`-th of this process.
  Status runVisit(const plan::ProgramNode &node, int64_t visit, exec::OpObserver *observer);

private:
  Status createFeed(uint32_t segment, uint32_t cell);
  Status runMicrobatch(const plan::ProgramNode &node, int64_t visit, int64_t microbatch,
                       exec::OpObserver *observer);
  int64_t &visitsBefore(FeedKind kind) { return visitsBefore_[static_cast<size_t>(kind)]; }

  exec::Executable &executable_;
  BatchSource &source_;
  HostTimer &timer_;
  std::vector<int64_t> visits_;                 ///< by segment
  std::vector<std::optional<FeedRing>> feedOf_; ///< by segment
  std::array<int64_t, 2> visitsBefore_{};       ///< by FeedKind
};

} // namespace shardc::run
