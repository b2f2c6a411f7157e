#include "runtime/exec/MemoryWatch.h"

#include <algorithm>

namespace shardc::exec {

std::vector<MemoryWatch::State> MemoryWatch::look() const {
  std::vector<State> states;
  for (size_t r = 0; r < executable_.rankCount(); ++r) {
    hal::Device &device = executable_.device(r);
    states.push_back({device.memory().used, device.allocationCount()});
  }
  return states;
}

void MemoryWatch::stepEnded() {
  if (first_.empty())
    first_ = look();
}

std::optional<MemoryChange> MemoryWatch::change() const {
  if (first_.empty())
    return std::nullopt;
  std::vector<State> now = look();
  MemoryChange change;
  change.used = now.front().used;
  for (size_t r = 0; r < now.size(); ++r) {
    change.growth = std::max(change.growth, now[r].used - first_[r].used);
    change.allocations = std::max(change.allocations, now[r].allocations - first_[r].allocations);
  }
  return change;
}

} // namespace shardc::exec
