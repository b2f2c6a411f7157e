// How long a step will take on a device, from the plan alone: every op by measured rates, streams
// side by side as their waits allow. What it stands on is in KernelTable.def and DeviceTable.def.
#pragma once

#include <string>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Seconds of one training step of a rank.
struct StepTime {
  double step = 0;
  double compute = 0;   ///< of kernels on the compute stream, with what transfers beside them cost
  double transfers = 0; ///< of all collectives
  double exposed = 0;   ///< in which no kernel runs while a collective does
};

/// GB/s in which a rank takes in an all-gather of this many bytes in all, over `members` devices of
/// one NVLink domain; by copy engines or by kernels. 0 without a link between devices.
double gatherGBs(const Device &device, int64_t fullBytes, int64_t members, bool copyEngines);

/// Seconds of one op by itself.
double timeOf(const Device &device, const plan::Plan &plan, const plan::Segment &segment,
              const plan::Op &op);

/// The plan is scheduled: streams and waits are known.
StepTime predictStep(const Device &device, const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::predict
