// Describes an attention op of a plan for runtime/base/Attention.h, which decides which kernels run
// it.
#pragma once

#include "runtime/base/Attention.h"
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

} // namespace shardc::predict
