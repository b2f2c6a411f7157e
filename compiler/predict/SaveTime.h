// The time that the copies of a save in the background take of a step (compiler/passes/Snapshot.cpp
// makes them), and how long the next update waits for them.
#pragma once

#include <cstdint>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Seconds to copy so many bytes within the device, and to the host.
double stageSeconds(const Device &device, int64_t bytes);
double hostCopySeconds(const Device &device, int64_t bytes);

/// Seconds of the role's step before its update begins: what a background segment has until the
/// update waits for it. The plan is scheduled.
double secondsBeforeUpdate(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// Of one save of a rank of the role, in seconds.
struct SaveTime {
  double staging = 0; ///< copies within the device
  double copying = 0; ///< to the host, all of them
  double waiting = 0; ///< of the next update
};
SaveTime saveTimeOf(const Device &device, const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::predict
