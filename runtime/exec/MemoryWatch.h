// Steps allocate nothing on a device. Whoever runs them can say so: by the backend's own count, and
// by what the system says is in use.
#pragma once

#include <optional>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::exec {

/// What became of some ranks' device memory between the end of the first step and the end of the
/// last one. All bytes are zero where devices have no memory of their own.
struct MemoryChange {
  int64_t ranks = 0;
  int64_t used = 0;        ///< bytes in use at the end, everybody's; the most of a rank
  int64_t growth = 0;      ///< bytes, everybody's; the most of a rank
  int64_t allocations = 0; ///< by the backend; the most of a rank
  int64_t arenasLeast = 0, arenasMost = 0; ///< bytes of a rank's buffers of arenas
  /// Bytes between a process' arenas and what its first device had more in use once they were
  /// there; the most of a process.
  int64_t arenasOff = 0;

  void add(const MemoryChange &others);
};

/// That of all ranks of a job; every process calls it.
Result<MemoryChange> gatherMemoryChange(hal::Peers &peers, const MemoryChange &mine);

class MemoryWatch {
public:
  /// The executable outlives the watch.
  explicit MemoryWatch(Executable &executable) : executable_(executable) {}

  /// A step has ended; the first one counts. No other is queued then.
  void stepEnded();
  /// Nothing if no step has ended.
  std::optional<MemoryChange> change() const;

private:
  struct State {
    int64_t used = 0, allocations = 0;
  };
  std::vector<State> look() const;

  Executable &executable_;
  std::vector<State> first_; ///< by rank
};

} // namespace shardc::exec
