// How much work of a rank may be queued. A device's queue holds so many entries, and a launch that
// finds it full keeps the host inside of the driver, on a core, until there is room. So whoever
// launches waits here before, asleep, and only as long as the device has work left.
#pragma once

#include <array>
#include <memory>

#include "runtime/hal/Backend.h"

namespace shardc::exec {

class LaunchWindow {
public:
  /// Up to `nodesMax` nodes of graphs; 0 is without limit.
  static Result<LaunchWindow> create(hal::Device &device, int64_t nodesMax);

  /// Waits until so many nodes more may be queued. Returns earlier if only one launch is under way
  /// that tells nothing of its end: the device never runs dry for this.
  Status makeRoom(int64_t nodes);
  /// Call after the `number`-th launch of a graph, from 1, on `stream`. `nearEnd`, if any, is a
  /// mark in the graph: past it the launch counts no more.
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
  static constexpr size_t kLaunchesMax = 64; ///< under way; more than two steps rarely have

  Launch &at(size_t number) { return launches_[number % kLaunchesMax]; }

  int64_t nodesMax_ = 0, nodes_ = 0;
  std::array<Launch, kLaunchesMax> launches_;
  size_t first_ = 0, end_ = 0; ///< numbers of launches
};

} // namespace shardc::exec
