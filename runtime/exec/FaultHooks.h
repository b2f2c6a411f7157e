// The points of a run at which a test may make something go wrong. The executor calls the object
// that it was given there; without one nothing happens.
#pragma once

#include <functional>
#include <span>

#include "runtime/base/Status.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"

namespace shardc::exec {

/// A segment that is about to be launched on one rank; no rank has begun it.
struct LaunchPoint {
  int rank = 0;
  int64_t step = 0;             ///< counted from 1 in this run
  bool isEvaluation = false;    ///< of an evaluation
  std::span<const BoundOp> ops; ///< with addresses and channels of the process' first rank
  std::function<hal::Channel *(size_t op)> channel; ///< of a collective, the rank's own
  hal::Backend &backend;
  hal::Stream &compute; ///< the rank's
  /// Makes the progress of an op's stream say that it is inside of the op.
  std::function<Status(size_t op)> enter;
};

class FaultHooks {
public:
  virtual ~FaultHooks() = default;
  /// A rank of this process is about to make a channel.
  virtual void beforeChannel(int /*rank*/) {}
  /// A status that is not ok becomes of the launch.
  virtual Status beforeLaunch(const LaunchPoint &) { return Status::ok(); }
};

} // namespace shardc::exec
