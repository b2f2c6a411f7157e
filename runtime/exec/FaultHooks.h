// The points of a run at which a test may inject a fault. The executor calls the object that it was
// given. Without one, nothing happens.
#pragma once

#include <functional>
#include <span>

#include "runtime/base/Status.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"

namespace shardc::exec {

/// A segment that is about to be launched on one rank. No rank has begun it yet.
struct LaunchPoint {
  int rank = 0;
  int64_t step = 0;             ///< counted from 1 in this run
  bool isEvaluation = false;    ///< belongs to an evaluation
  std::span<const BoundOp> ops; ///< with addresses and channels of this process' first rank
  std::function<hal::Channel *(size_t op)> channel; ///< the rank's own channel of a collective
  hal::Backend &backend;
  hal::Stream &compute; ///< the rank's compute stream
  /// Sets the progress word of the op's stream to "inside the op".
  std::function<Status(size_t op)> enter;
};

/// Injected faults of a test. The functions are called on the thread that creates or launches; the
/// default ones do nothing.
class FaultHooks {
public:
  virtual ~FaultHooks() = default;
  /// Called when a rank of this process is about to create a channel.
  virtual void beforeChannel(int /*rank*/) {}
  /// Called before a launch. An error status fails the launch.
  virtual Status beforeLaunch(const LaunchPoint &) { return Status::ok(); }
};

} // namespace shardc::exec
