// The flag of a plan by which its ranks agree on the step after which they end.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/Executable.h"

namespace shardc::run {

class StopFlag {
public:
  /// Finds the flag and clears it on all ranks of this process; nothing if the plan has none.
  Status prepare(exec::Executable &executable);
  bool isThere() const { return !addresses_.empty(); }
  /// Sets it in the order of the ranks' streams.
  Status set(exec::Executable &executable);

private:
  std::unique_ptr<hal::Buffer> source_; ///< holds a one
  std::vector<uint8_t *> addresses_;    ///< by rank of this process
};

} // namespace shardc::run
