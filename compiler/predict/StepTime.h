// Predicts the duration of a step from the plan alone: each op takes its time at measured rates,
// and streams run concurrently as far as their waits allow. The numbers are in KernelTable.def,
// LinkTable.def and DeviceTable.def.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Seconds of one training step of a rank.
struct StepTime {
  double step = 0;
  double compute = 0;   ///< kernels, including their slowdown by overlapping transfers
  double products = 0;  ///< the part of `compute` in matrix products, which draw the most power
  double transfers = 0; ///< all collectives
  double exposed = 0;   ///< exposed communication: a collective runs and no kernel
  double waiting = 0;   ///< time in which a role waits for other pipeline stages
};

/// Gap between two kernels of a graph, and cost of launching a graph.
inline constexpr double kGapSeconds = 1.2e-6, kLaunchSeconds = 25e-6;

/// Slowdown of products that are split into pieces of rows, as a fraction of the transfers' time.
/// It is caused by overlapping transfers and by the smaller extents: 0.8 for two and 0.9 for four
/// pieces in a step of llama3_8b on two H200s (docs/benchmarks/cuda-multi-gpu.md).
inline constexpr double kContentionOfPieces = 0.9;

/// In all other cases, the slowdown of kernels by overlapping transfers, which use SMs, memory
/// bandwidth and power, as a fraction of the transfers' time over NVLink. Measured in a step of
/// llama3_8b on four H200s: 35.6 ms, with 100 ms of overlapped transfers
/// (docs/benchmarks/cuda-multi-gpu.md).
inline constexpr double kContention = 0.355;

/// Seconds of one op without overlap.
double timeOf(const Device &device, const plan::Plan &plan, const plan::Segment &segment,
              const plan::Op &op);

/// Factor by which the power limit reduces the rates of products, head and attention, given the
/// fraction of the step that is products and head. More products give a smaller factor.
double powerFactor(double shareOfProducts);

/// The device with the rates of products, head and attention multiplied by a factor. A factor above
/// 1 does not raise fp8 rates.
Device atPower(Device device, double factor);

/// Whether the op counts as products or head in powerFactor().
bool takesPower(const plan::Op &op);

/// Predicted start and end of an op.
struct Interval {
  uint32_t segment, op; ///< segment index in the role, op index in the segment
  double begin, end;    ///< seconds since the step began
  int64_t microbatch;   ///< microbatch of the segment; -1 if it runs once per step
};

/// The prediction for one role, assuming that it never waits for another one. The plan must be
/// scheduled, so that streams and waits are known.
StepTime predictStep(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// The prediction for each role, including waits for other roles. All roles have the same step
/// time, that of the slowest.
std::vector<StepTime> predictSteps(const Device &device, const plan::Plan &plan);

/// The seconds that each op of a role takes in a step, by segment and op, without overlap; a
/// segment that a step does not run has none.
std::vector<std::vector<double>> opSeconds(const Device &device, const plan::Plan &plan,
                                           const plan::Role &role);

/// The prediction of the role with the most compute, for which the others wait.
StepTime slowestOf(const std::vector<StepTime> &times);

/// The predicted timeline of each role, op by op, in program order. Transfers between stages begin
/// when both ends are ready. Omits ops without duration, and everything after the first `countMax`
/// intervals.
std::vector<std::vector<Interval>> timelinesOf(const Device &device, const plan::Plan &plan,
                                               size_t countMax);

} // namespace shardc::predict
