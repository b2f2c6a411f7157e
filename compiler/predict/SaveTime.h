// Predicts the cost of the copies of an asynchronous save (compiler/passes/Snapshot.cpp inserts
// them), and how long the next update waits for them.
#pragma once

#include <cstdint>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Seconds to copy `bytes` bytes within the device, and to the host.
double stageSeconds(const Device &device, int64_t bytes);
double hostCopySeconds(const Device &device, int64_t bytes);

/// Seconds from the start of the role's step to its update. Copies of background segments that take
/// no longer delay nothing. The plan must be scheduled.
double secondsBeforeUpdate(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// The cost of one save for a rank, in seconds.
struct SaveTime {
  double staging = 0; ///< copies within the device
  double copying = 0; ///< all copies to the host
  double waiting = 0; ///< delay of the next update
};
/// The cost for a rank of the role. The plan must be scheduled.
SaveTime saveTimeOf(const Device &device, const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::predict
