#include "runtime/exec/LaunchWindow.h"

namespace shardc::exec {

Result<LaunchWindow> LaunchWindow::create(hal::Device &device, int64_t nodesMax) {
  LaunchWindow window;
  window.nodesMax_ = nodesMax;
  if (nodesMax > 0)
    for (Launch &launch : window.launches_) {
      ASSIGN_OR_RETURN(launch.end, device.createEvent());
    }
  return window;
}

hal::Event *LaunchWindow::sign(size_t number) {
  Launch &launch = at(number);
  // An event inside of a graph speaks of the graph's latest launch.
  bool isLatest = true;
  for (size_t later = number + 1; later < end_; ++later)
    isLatest &= at(later).graph != launch.graph;
  if (isLatest && launch.nearEnd)
    return launch.nearEnd;
  return number + 1 < end_ ? launch.end.get() : nullptr;
}

void LaunchWindow::forgetOldest() {
  nodes_ -= at(first_).graph->nodes();
  ++first_;
}

Status LaunchWindow::makeRoom(int64_t nodes) {
  if (nodesMax_ == 0)
    return Status::ok();
  while (first_ < end_) {
    hal::Event *event = sign(first_);
    bool isFull = nodes_ + nodes > nodesMax_ || end_ - first_ == kLaunchesMax;
    if (!event || (!isFull && !event->isDone()))
      return Status::ok();
    if (isFull)
      RETURN_IF_ERROR(event->synchronize());
    forgetOldest();
  }
  return Status::ok();
}

Status LaunchWindow::launched(hal::Stream &stream, const hal::Graph &graph, hal::Event *nearEnd) {
  if (nodesMax_ == 0)
    return Status::ok();
  SHARDC_CHECK(end_ - first_ < kLaunchesMax, "{} launches are under way", kLaunchesMax);
  Launch &launch = at(end_++);
  launch.graph = &graph;
  launch.nearEnd = nearEnd;
  nodes_ += graph.nodes();
  return stream.record(*launch.end);
}

} // namespace shardc::exec
