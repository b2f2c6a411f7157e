// Takes the memory after the first step as the reference, since libraries allocate on first use.
#include "runtime/run/MemoryWatch.h"

#include <algorithm>
#include <cstdlib>

namespace shardc::run {
namespace {

/// Bytes of a rank's arenas on its device.
int64_t arenaBytes(const exec::Arenas &arenas) {
  int64_t bytes = 0;
  for (int a = 0; a < plan::kArenaCount; ++a)
    if (auto arena = static_cast<plan::Arena>(a); arena != plan::Arena::Host)
      bytes += arenas.bytes(arena);
  return bytes;
}

} // namespace

void MemoryChange::add(const MemoryChange &others) {
  arenasLeast = ranks == 0 ? others.arenasLeast : std::min(arenasLeast, others.arenasLeast);
  arenasMost = std::max(arenasMost, others.arenasMost);
  arenasOff = std::max(arenasOff, others.arenasOff);
  used = std::max(used, others.used);
  growth = std::max(growth, others.growth);
  allocations = std::max(allocations, others.allocations);
  ranks += others.ranks;
}

Result<MemoryChange> gatherMemoryChange(hal::Peers &peers, const MemoryChange &mine) {
  const int64_t own[] = {-mine.arenasLeast, mine.arenasMost, mine.arenasOff,
                         mine.used,         mine.growth,     mine.allocations};
  ASSIGN_OR_RETURN(std::vector<int64_t> most, peers.allMost("memory in use", own));
  MemoryChange all;
  all.ranks = peers.worldSize();
  all.arenasLeast = -most[0], all.arenasMost = most[1], all.arenasOff = most[2];
  all.used = most[3], all.growth = most[4], all.allocations = most[5];
  return all;
}

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
  for (size_t r = 0; r < now.size(); ++r) {
    MemoryChange one;
    one.ranks = 1;
    one.used = now[r].used;
    one.growth = now[r].used - first_[r].used;
    one.allocations = now[r].allocations - first_[r].allocations;
    if (now[r].used > 0)
      one.arenasLeast = one.arenasMost = arenaBytes(executable_.arenas(r));
    if (const exec::MemoryStages &stages = executable_.memoryStages(); r == 0 && stages.total > 0)
      one.arenasOff = std::abs(stages.arenas - stages.begin + stages.takenOver - one.arenasMost);
    change.add(one);
  }
  return change;
}

} // namespace shardc::run
