// How long a step will take on a device, from the plan alone: every op by measured rates, streams
// side by side as their waits allow. What it stands on is in KernelTable.def, LinkTable.def and
// DeviceTable.def.
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

/// Seconds of one op by itself.
double timeOf(const Device &device, const plan::Plan &plan, const plan::Segment &segment,
              const plan::Op &op);

/// The plan is scheduled: streams and waits are known.
StepTime predictStep(const Device &device, const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::predict
