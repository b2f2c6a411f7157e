// Captured work of a host device: lanes of items, without redundant waits and records.
#include <algorithm>

#include "runtime/backend/host/HostStream.h"

namespace shardc::host {

Lane *HostGraph::addLane(const std::string &name) {
  auto lane = std::make_unique<Lane>();
  lane->rank = rank_;
  lane->name = name;
  lane->graph = &state_;
  state_.lanes.push_back(std::move(lane));
  return state_.lanes.back().get();
}

EventState *HostGraph::addEvent() {
  state_.events.push_back(std::make_unique<EventState>());
  state_.events.back()->waiters.reserve(8);
  return state_.events.back().get();
}

void HostGraph::finish() {
  dropTrivialWaits();
  dropIdleRecords();
  std::erase_if(state_.lanes,
                [](const std::unique_ptr<Lane> &lane) { return lane->items.empty(); });
  int64_t items = 0;
  for (const std::unique_ptr<Lane> &lane : state_.lanes) {
    lane->items.shrink_to_fit();
    items += static_cast<int64_t>(lane->items.size());
  }
  setNodes(items);
  reserved_ = state_.lanes.size();
  engine_.reserveLanes(reserved_);
}

void HostGraph::dropTrivialWaits() {
  std::vector<Item> &origin = state_.lanes.front()->items;
  std::vector<const EventState *> atStart;
  for (const Item &item : origin) {
    if (item.kind != Item::Record)
      break;
    atStart.push_back(item.event);
  }
  auto isTrivial = [&](const Item &item) {
    return item.kind == Item::Wait &&
           std::find(atStart.begin(), atStart.end(), item.event) != atStart.end();
  };
  for (size_t i = 1; i < state_.lanes.size(); ++i)
    std::erase_if(state_.lanes[i]->items, isTrivial);
  while (!origin.empty() && origin.back().kind == Item::Wait)
    origin.pop_back();
}

void HostGraph::dropIdleRecords() {
  std::vector<const EventState *> awaited;
  for (const std::unique_ptr<Lane> &lane : state_.lanes)
    for (const Item &item : lane->items)
      if (item.kind == Item::Wait)
        awaited.push_back(item.event);
  std::sort(awaited.begin(), awaited.end());
  for (const std::unique_ptr<Lane> &lane : state_.lanes)
    std::erase_if(lane->items, [&](const Item &item) {
      return item.kind == Item::Record &&
             !std::binary_search(awaited.begin(), awaited.end(), item.event);
    });
}

} // namespace shardc::host
