// Limits the queued work of a rank. A device's queue has a fixed number of entries, and a launch
// into a full queue busy-waits inside the driver until there is room. So the launching thread first
// waits here, asleep, and only while the device has work left.
#pragma once

#include <array>
#include <memory>

#include "runtime/hal/Backend.h"

namespace shardc::exec {

class LaunchQueue {
public:
  /// Creates a queue that holds at most `nodesMax` graph nodes; 0 is unlimited.
  static Result<LaunchQueue> create(hal::Device &device, int64_t nodesMax);

  /// Waits until this number of nodes may be enqueued. Returns earlier if only one launch is
  /// running and has no mark near its end, so that the limit never makes the device idle.
  Status makeRoom(int64_t nodes);
  /// Call this after the `number`-th launch of a graph, counted from 1, on `stream`. `nearEnd`, if
  /// set, is a mark in the graph: after it the launch no longer counts.
  Status launched(hal::Stream &stream, const hal::Graph &graph, hal::Mark *nearEnd, int64_t number);

private:
  struct Launch {
    int64_t nodes = 0;
    hal::Mark *nearEnd = nullptr;
    int64_t number = 0; ///< of the launches that pass the mark
    std::unique_ptr<hal::Event> end;

    bool isOver() const { return nearEnd ? nearEnd->isPassed(number) : end->isDone(); }
    Status await() const { return nearEnd ? nearEnd->await(number) : end->synchronize(); }
  };
  static constexpr size_t kLaunchesMax = 64; ///< running; more than two steps rarely have

  Launch &at(size_t number) { return launches_[number % kLaunchesMax]; }

  int64_t nodesMax_ = 0, nodes_ = 0;
  std::array<Launch, kLaunchesMax> launches_;
  size_t first_ = 0, end_ = 0; ///< numbers of launches
};

} // namespace shardc::exec
