// Workspaces of CUDA kernels: memory that matrix products, attention gradients and the output head
// need in addition to operands and results. Formulas and constants were measured with
// `shardc-cuda-bench --workspaces` and with runs, on an H200 with cuBLASLt 13.1 and cuDNN 9.19.
#pragma once

#include <cstdint>

#include "compiler/predict/DeviceTable.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Workspace of an op in bytes; 0 for ops with little or none. `isDeterministic`: the job's
/// setting; deterministic attention gradients need many times as much.
int64_t scratchOf(const Device &device, const plan::Segment &segment, const plan::Op &op,
                  bool isDeterministic);

/// Workspaces of a rank in bytes: one per stream, with the size that the stream's largest op needs.
int64_t workspacesOf(const Device &device, const plan::Role &role, bool isDeterministic);

} // namespace shardc::predict
