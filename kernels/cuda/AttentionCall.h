// What a call of attention asks for, as runtime/base/Attention.h describes it. Needs no CUDA.
#pragma once

#include "kernels/api/Kernel.h"
#include "runtime/base/Attention.h"

namespace shardc::kernels::cuda {

/// Some rows of each sample's queries, and its first keys. Causal: the last query sees all of them,
/// the one before one less.
struct AttentionPiece {
  int64_t firstQuery = 0, queries = 0, keys = 0;
  bool causal = false;
  float *statistics = nullptr; ///< f32[B, N, queries], where the call runs
};

/// The op that a call belongs to.
struct AttentionOp {
  bool backward = false;
  bool packed = false;    ///< attention_qkv: reads and writes heads in the rows of q, k and v
  bool hasSlices = false; ///< attention_part: of slices of sequences
  const AttentionPiece *piece = nullptr; ///< of such a call: what of it
};

AttentionKind attentionKindOf(const Call &call, const AttentionOp &op);

/// Null, or why no kernel has the call, as far as its types, shapes and attributes determine it.
const char *attentionRefusal(const Call &call, const AttentionOp &op);

} // namespace shardc::kernels::cuda
