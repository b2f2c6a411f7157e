// The weights of a run, whole, on its first process: what continues texts there needs all of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Peers.h"

namespace shardc::save {

class WholeWeights {
public:
  /// Collects the weights of all ranks, also frozen ones. No work may be queued. All processes call
  /// it together; `peers` connects them, and is null if there is one process. Only the first
  /// process gets the weights.
  static Result<WholeWeights> gather(exec::Executable &executable, hal::Peers *peers);

  /// Converts a tensor to `type`, and forgets it. Tables have as many rows as both sides: each
  /// layout pads the vocabulary in its own way.
  Status take(const std::string &name, const plan::Type &type, void *dst);

private:
  std::map<std::string, std::vector<float>> tensors_;
};

} // namespace shardc::save
