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

  /// Converts `count` rows of a tensor, from row `first` on, to `type`, which is that of the whole
  /// tensor. Forgets the tensor with its last row. Rows that it lacks are set to zero: each layout
  /// pads the vocabulary in its own way.
  Status take(const std::string &name, const plan::Type &type, int64_t first, int64_t count,
              void *dst);

private:
  std::map<std::string, std::vector<float>> tensors_;
};

} // namespace shardc::save
