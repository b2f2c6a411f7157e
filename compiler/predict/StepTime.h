// How long a step will take on a device, from the plan alone: every op by measured rates, streams
// side by side as their waits allow. What it stands on is in KernelTable.def, LinkTable.def and
// DeviceTable.def.
#pragma once

#include <cstdint>
#include <vector>

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

/// When an op runs.
struct Interval {
  uint32_t segment, op; ///< indices in the role, and in the segment
  double begin, end;    ///< seconds since the step began
};

/// The plan is scheduled: streams and waits are known.
StepTime predictStep(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// The same step op by op, in the order of the program; ops that take no time are left out, and
/// whatever begins beyond `countMax` intervals.
std::vector<Interval> timelineOf(const Device &device, const plan::Plan &plan,
                                 const plan::Role &role, size_t countMax);

} // namespace shardc::predict
