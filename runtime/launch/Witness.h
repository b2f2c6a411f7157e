// A process that watches a supervisor that starts all ranks of a run. If the supervisor is killed,
// its ranks are killed with it, and none of them could report it.
#pragma once

#include <functional>

#include "runtime/base/Socket.h"
#include "runtime/base/Status.h"

namespace shardc::launch {

class Witness {
public:
  Witness() = default;
  Witness(const Witness &) = delete;
  Witness &operator=(const Witness &) = delete;
  /// Tells the process that the supervisor ends by itself.
  ~Witness();

  /// Starts the process. It calls `emit` once the calling process, and every process that this one
  /// starts later, is gone without having announced its end. Must be called while the calling
  /// process has one thread.
  Status start(const std::function<void()> &emit);

private:
  Socket end_;
};

} // namespace shardc::launch
