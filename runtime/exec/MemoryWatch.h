// Steps allocate nothing on a device. Whoever runs them can say so: by the backend's own count, and
// by what the system says is in use.
#pragma once

#include <optional>
#include <vector>

#include "runtime/exec/Executable.h"

namespace shardc::exec {

/// How memory of the devices of this process changed between the end of the first step and the end
/// of the last one.
struct MemoryChange {
  int64_t used = 0;        ///< bytes of the first device at the end; 0 where it has none of its own
  int64_t growth = 0;      ///< bytes, everybody's; the largest of all devices
  int64_t allocations = 0; ///< by the backend
};

class MemoryWatch {
public:
  /// The executable outlives the watch.
  explicit MemoryWatch(Executable &executable) : executable_(executable) {}

  /// A step has ended; the first one counts.
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
