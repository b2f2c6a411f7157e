// Scratch of CUDA kernels: memory that products, attention's gradients and the head need in
// addition to their operands and results. Formulas and constants were determined with
// `shardc-cuda-bench --workspaces` and runs with cuBLASLt 13.1 and cuDNN 9.19 on an H200.
#pragma once

#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Bytes of scratch of the op; 0 for ops with little or none. `isDeterministic` is the setting of
/// the run's kernels: deterministic gradients of attention need many times as much.
int64_t scratchOf(const plan::Segment &segment, const plan::Op &op, bool isDeterministic);

/// Bytes of scratch of a rank: one piece for each stream, as large as its largest op needs.
int64_t workspacesOf(const plan::Role &role, bool isDeterministic);

} // namespace shardc::predict
