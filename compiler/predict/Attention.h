// What attention of a plan is, to runtime/base/Attention.h, which says whose kernels form it.
#pragma once

#include "runtime/base/Attention.h"
#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// Whether the op is the gradient of attention.
bool isAttentionBwd(plan::OpKind kind);

/// The queries, [B,S,N,D], or the rows that they lie in with keys and values, [B,S,(N+2G)·D].
const plan::Type &queriesOf(const plan::Segment &segment, const plan::Op &op);

AttentionKind attentionKindOf(const plan::Segment &segment, const plan::Op &op);

} // namespace shardc::predict
