// Describes ops of a plan for runtime/base/KernelPath.h, which decides which kernels run them.
#pragma once

#include <string>

#include "compiler/predict/DeviceTable.h"
#include "runtime/base/KernelPath.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Whether the op is the gradient of attention.
bool isAttentionBwd(plan::OpKind kind);

/// The type of the queries, [B,S,N,D], or of packed QKV rows, [B,S,(N+2G)·D].
const plan::Type &queriesOf(const plan::Segment &segment, const plan::Op &op);

/// The type of the keys, or of packed QKV rows.
const plan::Type &keysOf(const plan::Segment &segment, const plan::Op &op);

/// The type of the values, or of packed QKV rows.
const plan::Type &valuesOf(const plan::Segment &segment, const plan::Op &op);

/// Types, extents and attributes of the op, from which the kernel follows.
AttentionKind attentionKindOf(const plan::Segment &segment, const plan::Op &op);

/// Whether the op is a matrix product with one operand per expert.
bool isGrouped(const plan::Op &op);
GroupedKind groupedKindOf(const plan::Segment &segment, const plan::Op &op);

/// Whether the op is a delta rule or a state scan, or its gradient.
bool isDelta(const plan::Op &op);
DeltaKind deltaKindOf(const plan::Segment &segment, const plan::Op &op);
/// The type of its queries, [B,S,G,K].
const plan::Type &deltaQueriesOf(const plan::Segment &segment, const plan::Op &op);

/// What such a device offers with the software of a package, and the paths that the environment
/// variable SHARDC_KERNEL_PATH forces.
GpuTraits traitsOf(const Device &device);

/// The kernels that run an op on the device; None on the host, and for ops that have no choice.
KernelPath pathOf(const Device &device, const plan::Segment &segment, const plan::Op &op);

/// Whether the op runs on CUDA cores although tensor cores have its type.
bool isSlow(const Device &device, const plan::Segment &segment, const plan::Op &op);

/// Why the op does not take a path of its group.
const char *pathRefusalOf(KernelPath path, const Device &device, const plan::Segment &segment,
                          const plan::Op &op);

/// The kernels of each group of ops that the plan has, as a line of text; empty if it has none.
std::string kernelsText(const Device &device, const plan::Plan &plan);

} // namespace shardc::predict
