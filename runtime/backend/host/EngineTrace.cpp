// Records traces of the host backend: begin and end of each item, including the time that members
// of a collective wait for each other.
#include <algorithm>
#include <chrono>

#include "runtime/backend/host/Engine.h"

namespace shardc::host {

int64_t nowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Engine::record(const Lane &lane, const Item &item) {
  const char *work = item.kind == Item::Kernel       ? "kernel"
                     : item.kind == Item::Collective ? "collective"
                     : item.kind == Item::Copy       ? "copy"
                     : item.kind == Item::Fill       ? "fill"
                                                     : nullptr;
  if (!work)
    return;
  trace::Span span{lane.rank, lane.name, item.label, work, lane.beganNs, nowNs()};
  std::lock_guard lock(traceMutex_);
  spans_.push_back(std::move(span));
}

void Engine::startTrace() {
  std::lock_guard lock(traceMutex_);
  spans_.clear();
  isTracing_ = true;
}

std::vector<trace::Span> Engine::stopTrace() {
  std::lock_guard lock(traceMutex_);
  isTracing_ = false;
  std::stable_sort(spans_.begin(), spans_.end(), [](const trace::Span &a, const trace::Span &b) {
    return a.beginNs < b.beginNs;
  });
  return std::move(spans_);
}

} // namespace shardc::host
