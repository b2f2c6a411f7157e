// Scratch of CUDA kernels: what products, attention's gradients and the head take beside their
// operands and results. Formulas and constants follow what `shardc-cuda-bench --workspaces` and
// runs showed with cuBLASLt 13.1 and cuDNN 9.19 on an H200.
#pragma once

#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Bytes that the op takes; 0 for ops without scratch to speak of. `isDeterministic` as the run's
/// kernels are: gradients of attention in a fixed order take many times as much.
int64_t scratchOf(const plan::Segment &segment, const plan::Op &op, bool isDeterministic);

/// Bytes of a rank: one piece for each stream, as large as its largest op needs.
int64_t workspacesOf(const plan::Role &role, bool isDeterministic);

} // namespace shardc::predict
