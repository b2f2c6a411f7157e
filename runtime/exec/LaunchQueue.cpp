// Keeps the launches under way in a ring, oldest first, with the number of graph nodes of each.
#include "runtime/exec/LaunchQueue.h"

namespace shardc::exec {

Result<LaunchQueue> LaunchQueue::create(hal::Device &device, int64_t nodesMax) {
  LaunchQueue queue;
  queue.nodesMax_ = nodesMax;
  if (nodesMax > 0)
    for (Launch &launch : queue.launches_) {
      ASSIGN_OR_RETURN(launch.end, device.createEvent());
    }
  return queue;
}

Status LaunchQueue::makeRoom(int64_t nodes) {
  if (nodesMax_ == 0)
    return Status::ok();
  for (; first_ < end_; ++first_) {
    const Launch &oldest = at(first_);
    bool isFull = nodes_ + nodes > nodesMax_ || end_ - first_ == kLaunchesMax;
    bool letsRunDry = first_ + 1 == end_ && !oldest.nearEnd; // a wait would leave the device idle
    if (letsRunDry || (!isFull && !oldest.isOver()))
      return Status::ok();
    if (isFull)
      RETURN_IF_ERROR(oldest.await());
    nodes_ -= oldest.nodes;
  }
  return Status::ok();
}

/// Records the end of the launch, for which makeRoom may wait.
Status LaunchQueue::launched(hal::Stream &stream, const hal::Graph &graph, hal::Mark *nearEnd,
                             int64_t number) {
  if (nodesMax_ == 0)
    return Status::ok();
  SHARDC_CHECK(end_ - first_ < kLaunchesMax, "{} launches are under way", kLaunchesMax);
  Launch &launch = at(end_++);
  launch.nodes = graph.nodes();
  launch.nearEnd = nearEnd;
  launch.number = number;
  nodes_ += launch.nodes;
  return stream.record(*launch.end);
}

} // namespace shardc::exec
