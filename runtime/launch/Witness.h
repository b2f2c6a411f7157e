// A process beside a supervisor that starts all ranks of a run. If the supervisor is killed, its
// ranks are killed with it, and nobody of them could say so.
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
  /// Says that the supervisor ends by itself.
  ~Witness();

  /// Starts the process. It calls `emit` once this process and all that it starts from now on are
  /// gone without having said that they end. Call it while this process has one thread.
  Status start(const std::function<void()> &emit);

private:
  Socket end_;
};

} // namespace shardc::launch
