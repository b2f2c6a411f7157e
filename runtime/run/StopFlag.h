// The flag of a plan with which its ranks agree on the step after which they end.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/Executable.h"

namespace shardc::run {

class StopFlag {
public:
  /// Finds the flag and clears it on all ranks of this process. Does nothing if the plan has no
  /// flag.
  Status prepare(exec::Executable &executable);
  bool isThere() const { return !addresses_.empty(); }
  /// Enqueues a write that sets the flag on the compute stream of each rank of this process.
  Status set(exec::Executable &executable);

private:
  std::unique_ptr<hal::Buffer> source_; ///< contains a one
  std::vector<uint8_t *> addresses_;    ///< by rank of this process
};

} // namespace shardc::run
