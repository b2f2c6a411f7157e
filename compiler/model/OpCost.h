// The cost of an op: floating-point operations and bytes of memory traffic, from its operands and
// results. Model FLOPs follow the convention of performance reports: products count 2·m·n·k,
// attention its causal half. Recomputed ops count here like any other; `modelFlops` excludes
// them.
#pragma once

#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::model {

struct OpCost {
  double flops = 0; ///< multiplications and additions
  double bytes = 0; ///< read and written once each, in device memory
};

/// Of the rows that a plan with experts has room for, those that are there when each expert gets as
/// many as any other. 1 without experts.
double expectedShareOfRows(const plan::Plan &plan);

/// The same for the rank with the most rows: a step waits for it at each exchange. The more ranks
/// divide the experts, the fewer experts a rank has to even out their imbalance. The imbalance of
/// experts is `model.moe_predicted_imbalance` or, without it, kMeasuredImbalance.
double busiestShareOfRows(const plan::Plan &plan);

/// Rows of the busiest expert over those of the mean one, in the first steps of mixtral_small with
/// eight experts on random tokens (docs/benchmarks/four-gpus.md).
inline constexpr double kMeasuredImbalance = 1.9;

/// Cost of one execution. Matrix products with counted rows, and ops that skip invalid rows, are
/// charged for the expected rows; other ops that pass over memory, for the whole capacity.
/// Collectives are charged for the bytes that they read and write locally; plan::trafficOfStep has
/// the bytes that they send.
OpCost costOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op);

/// The same on the rank that has the most rows.
OpCost costOnBusiestRank(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op);

/// Cost of one training step of a rank: all ops, times the microbatches in which they execute.
OpCost costOfStep(const plan::Plan &plan, const plan::Role &role);

/// FLOPs of a step that the model requires, without recomputation.
double modelFlopsOfStep(const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::model
