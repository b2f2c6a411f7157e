// Describes an attention call in the terms of runtime/base/Attention.h. Needs no CUDA.
#pragma once

#include "kernels/api/Kernel.h"
#include "runtime/base/Attention.h"

namespace shardc::kernels::cuda {

/// A part of an attention call: a range of each sample's queries against its first keys. If causal,
/// the last query of the range sees all of these keys, the one before one fewer, and so on.
struct AttentionPiece {
  int64_t firstQuery = 0, queries = 0, keys = 0;
  bool causal = false;
  float *statistics = nullptr; ///< f32[B, N, queries], if the call is executed
};

/// The op that a call belongs to.
struct AttentionOp {
  bool backward = false;
  bool packed = false;                   ///< attention_qkv: heads are inside packed q, k, v rows
  bool hasSlices = false;                ///< attention_part: on slices of sequences
  const AttentionPiece *piece = nullptr; ///< for attention_part: the part to compute
};

AttentionKind attentionKindOf(const Call &call, const AttentionOp &op);

/// Null, or the reason why no kernel supports the call, as far as types, shapes and attributes
/// tell.
const char *attentionRefusal(const Call &call, const AttentionOp &op);

} // namespace shardc::kernels::cuda
