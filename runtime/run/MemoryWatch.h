// Verifies that steps allocate no device memory, according to the backend's own count and to the
// memory in use that the system reports. Takes the memory after the first step as the reference,
// since libraries allocate on first use.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::run {

/// Change of ranks' device memory from the end of the first step to the end of the last step. All
/// bytes are zero if devices have no separate memory.
struct MemoryChange {
  int64_t ranks = 0;
  int64_t used = 0;        ///< bytes in use at the end, by all processes; maximum over ranks
  int64_t growth = 0;      ///< bytes, by all processes; maximum over ranks
  int64_t allocations = 0; ///< by the backend; maximum over ranks
  int64_t arenasLeast = 0, arenasMost = 0; ///< bytes of a rank's arenas, over ranks
  /// Difference between the size of a process' arenas and the growth of memory in use on its first
  /// device when they were allocated; maximum over processes.
  int64_t arenasOff = 0;

  void add(const MemoryChange &others) {
    arenasLeast = ranks == 0 ? others.arenasLeast : std::min(arenasLeast, others.arenasLeast);
    arenasMost = std::max(arenasMost, others.arenasMost);
    arenasOff = std::max(arenasOff, others.arenasOff);
    used = std::max(used, others.used);
    growth = std::max(growth, others.growth);
    allocations = std::max(allocations, others.allocations);
    ranks += others.ranks;
  }
};

/// Combines the changes of all ranks of a job. All processes must call it.
inline Result<MemoryChange> gatherMemoryChange(hal::Peers &peers, const MemoryChange &mine) {
  const int64_t own[] = {-mine.arenasLeast, mine.arenasMost, mine.arenasOff,
                         mine.used,         mine.growth,     mine.allocations};
  ASSIGN_OR_RETURN(std::vector<int64_t> most, peers.allMost("memory in use", own));
  MemoryChange all;
  all.ranks = peers.worldSize();
  all.arenasLeast = -most[0], all.arenasMost = most[1], all.arenasOff = most[2];
  all.used = most[3], all.growth = most[4], all.allocations = most[5];
  return all;
}

class MemoryWatch {
public:
  /// The executable must outlive the watch.
  explicit MemoryWatch(exec::Executable &executable) : executable_(executable) {}

  /// Call it when a step has ended; the first call sets the reference. No other step may be queued.
  void stepEnded() {
    if (first_.empty())
      first_ = look();
  }

  /// Nothing if no step has ended.
  std::optional<MemoryChange> change() const {
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

private:
  /// Bytes of a rank's arenas on its device.
  static int64_t arenaBytes(const exec::Arenas &arenas) {
    int64_t bytes = 0;
    for (int a = 0; a < plan::kArenaCount; ++a)
      if (auto arena = static_cast<plan::Arena>(a); arena != plan::Arena::Host)
        bytes += arenas.bytes(arena);
    return bytes;
  }

  struct State {
    int64_t used = 0, allocations = 0;
  };
  std::vector<State> look() const {
    std::vector<State> states;
    for (size_t r = 0; r < executable_.rankCount(); ++r) {
      hal::Device &device = executable_.device(r);
      states.push_back({device.memory().used, device.allocationCount()});
    }
    return states;
  }

  exec::Executable &executable_;
  std::vector<State> first_; ///< by rank
};

} // namespace shardc::run
