// Predicts the duration of a step on a device from the plan alone: every op by measured rates,
// streams concurrently as their waits allow. The figures are in KernelTable.def, LinkTable.def and
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
  double compute = 0;   ///< kernels on the compute stream, including their slowdown by overlap
  double products = 0;  ///< of these, matrix products and the head: what takes the most power
  double transfers = 0; ///< of all collectives
  double exposed = 0;   ///< exposed communication: a collective runs and no kernel does
  double waiting = 0;   ///< for other stages of a pipeline
};

/// Time between the end of one kernel of a graph and the start of the next, and around a graph.
inline constexpr double kGapSeconds = 1.2e-6, kLaunchSeconds = 25e-6;

/// Slowdown of products that are cut into pieces of rows, by the transfers of pieces beside them
/// and by their smaller extents, as a share of these transfers' time: 0.8 with two and 0.9 with
/// four pieces in a step of llama3_8b on two H200s (docs/benchmarks/cuda-multi-gpu.md).
inline constexpr double kContentionOfPieces = 0.9;

/// Slowdown of kernels by other transfers that overlap them, through multiprocessors, memory and
/// power, as a share of the transfers' time over NVLink: 35.6 ms in a step of llama3_8b on four
/// H200s, whose transfers take 103 ms, of which 3 overlap nothing
/// (docs/benchmarks/cuda-multi-gpu.md).
inline constexpr double kContention = 0.355;

/// Seconds of one op without overlap.
double timeOf(const Device &device, const plan::Plan &plan, const plan::Segment &segment,
              const plan::Op &op);

/// What power leaves of the rates of products, of the head and of attention in a step of which
/// products and the head take so much; more of them leave less.
double powerFactor(double shareOfProducts);

/// The device with these rates times a factor; those of fp8 are not raised.
Device atPower(Device device, double factor);

/// Whether the op is one of those that count in this share.
bool takesPower(const plan::Op &op);

/// Start and end of an op.
struct Interval {
  uint32_t segment, op; ///< indices in the role, and in the segment
  double begin, end;    ///< seconds since the step began
  int64_t microbatch;   ///< that the segment runs for; -1 if it runs once in a step
};

/// Of the role alone, as if nobody had to wait for another role. The plan must be scheduled, so
/// that streams and waits are known.
StepTime predictStep(const Device &device, const plan::Plan &plan, const plan::Role &role);

/// Of each role. A step takes as long as its slowest role, and all roles wait for what they take
/// from others.
std::vector<StepTime> predictSteps(const Device &device, const plan::Plan &plan);

/// That of the role that computes longest, which the others wait for.
StepTime slowestOf(const std::vector<StepTime> &times);

/// The same step op by op, of each role, in the order of its program. A transfer between stages
/// begins when both of them are ready for it. Omits ops that take no time, and everything after the
/// first `countMax` intervals.
std::vector<std::vector<Interval>> timelinesOf(const Device &device, const plan::Plan &plan,
                                               size_t countMax);

} // namespace shardc::predict
