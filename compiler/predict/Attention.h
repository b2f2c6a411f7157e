// Describes an attention op of a plan for runtime/base/Attention.h, which determines the kernels.
#pragma once

#include "runtime/base/Attention.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Whether the op is the gradient of attention.
bool isAttentionBwd(plan::OpKind kind);

/// The queries, [B,S,N,D], or the rows that hold them with keys and values, [B,S,(N+2G)·D].
const plan::Type &queriesOf(const plan::Segment &segment, const plan::Op &op);

/// The keys, or the rows that hold them with queries and values.
const plan::Type &keysOf(const plan::Segment &segment, const plan::Op &op);

const plan::Type &valuesOf(const plan::Segment &segment, const plan::Op &op);
AttentionKind attentionKindOf(const plan::Segment &segment, const plan::Op &op);

} // namespace shardc::predict
