// The cost of an op: floating-point operations and bytes of memory traffic, from its operands and
// results. Model FLOPs follow the convention of performance reports: products count 2·m·n·k,
// attention only its causal half. Recomputed ops count here like any other; `modelFlopsOfStep`
// excludes them.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::model {

struct OpCost {
  double flops = 0; ///< multiplications and additions
  double bytes = 0; ///< bytes of device memory; each operand and result counts once
};

/// The expected fraction of the row capacity of experts that is used, if all experts get equally
/// many rows. 1 without experts.
double expectedShareOfRows(const plan::Plan &plan);

/// The same fraction for the rank with the most rows, for which a step waits at each exchange. If
/// more ranks divide the experts, a rank has fewer experts, which balance each other less. The
/// imbalance of experts is `model.moe_predicted_imbalance` or, if that is not set,
/// kMeasuredImbalance.
double busiestShareOfRows(const plan::Plan &plan);

/// Ratio of rows between the busiest and the mean expert, in the first steps of mixtral_small with
/// eight experts on random tokens (docs/benchmarks/four-gpus.md).
inline constexpr double kMeasuredImbalance = 1.9;

/// Cost of one execution. Products with row counts, and ops that skip unused rows, are charged for
/// the expected rows; other memory-bound ops are charged for the whole capacity. Collectives are
/// charged for the bytes that they read and write locally; plan::trafficOfStep has the bytes that
/// they send.
OpCost costOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op);

/// Like costOf(), on the rank that has the most rows.
OpCost costOnBusiestRank(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op);

/// Cost of one training step of a rank: all ops, times the microbatches in which they execute.
OpCost costOfStep(const plan::Plan &plan, const plan::Role &role);

/// FLOPs of a step that the model requires: without recomputation.
double modelFlopsOfStep(const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::model
