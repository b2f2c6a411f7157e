// Limits the queued work of a rank. A device's queue has a fixed number of entries, and a launch
// into a full queue busy-waits inside the driver. So the launching thread first sleeps here until
// there is room, but only while the device has other work left.
#pragma once

#include <array>
#include <memory>

#include "runtime/hal/Backend.h"

namespace shardc::exec {

/// Counts the graph nodes of a rank's launches that have not ended. Not thread-safe.
class LaunchQueue {
public:
  /// Creates a queue for at most `nodesMax` graph nodes; 0: no limit.
  static Result<LaunchQueue> create(hal::Device &device, int64_t nodesMax);

  /// Waits until this number of nodes may be enqueued. Returns earlier if only one launch is
  /// running and has no mark near its end, so that the device never becomes idle because of the
  /// limit.
  Status makeRoom(int64_t nodes);
  /// Call it after the `number`-th launch of a graph, counted from 1, on `stream`. If `nearEnd` is
  /// set, it is a mark in the graph; a launch that has passed it no longer counts.
  Status launched(hal::Stream &stream, const hal::Graph &graph, hal::Mark *nearEnd, int64_t number);

private:
  struct Launch {
    int64_t nodes = 0;
    hal::Mark *nearEnd = nullptr;
    int64_t number = 0; ///< number of the launch, for the mark
    std::unique_ptr<hal::Event> end;

    bool isOver() const { return nearEnd ? nearEnd->isPassed(number) : end->isDone(); }
    Status await() const { return nearEnd ? nearEnd->await(number) : end->synchronize(); }
  };
  static constexpr size_t kLaunchesMax = 64; ///< launches at a time; two steps rarely have more

  Launch &at(size_t number) { return launches_[number % kLaunchesMax]; }

  int64_t nodesMax_ = 0, nodes_ = 0;
  std::array<Launch, kLaunchesMax> launches_;
  size_t first_ = 0, end_ = 0; ///< numbers of the oldest and of the next launch
};

} // namespace shardc::exec
