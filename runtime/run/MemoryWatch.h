// Verifies that steps allocate no device memory, according to the backend's own count and to the
// memory in use that the system reports.
#pragma once

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

  void add(const MemoryChange &others);
};

/// Combines the changes of all ranks of a job. All processes must call it.
Result<MemoryChange> gatherMemoryChange(hal::Peers &peers, const MemoryChange &mine);

class MemoryWatch {
public:
  /// The executable must outlive the watch.
  explicit MemoryWatch(exec::Executable &executable) : executable_(executable) {}

  /// Call it when a step has ended; the first call sets the reference. No other step may be queued.
  void stepEnded();
  /// Nothing if no step has ended.
  std::optional<MemoryChange> change() const;

private:
  struct State {
    int64_t used = 0, allocations = 0;
  };
  std::vector<State> look() const;

  exec::Executable &executable_;
  std::vector<State> first_; ///< by rank
};

} // namespace shardc::run
