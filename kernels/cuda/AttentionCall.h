// Describes calls with the types of runtime/base/KernelPath.h. Needs no CUDA to compile.
#pragma once

#include "kernels/api/Kernel.h"
#include "runtime/base/KernelPath.h"

namespace shardc::kernels::cuda {

/// A part of an attention call: a range of each sample's queries, and the first `keys` keys. If
/// causal, the last query of the range sees all of these keys, and each earlier query one key less.
struct AttentionPiece {
  int64_t firstQuery = 0, queries = 0, keys = 0;
  bool causal = false;
  float *statistics = nullptr; ///< f32[B, N, queries], if the call is executed
};

/// Which attention op a call belongs to.
struct AttentionOp {
  bool backward = false;
  bool packed = false;                   ///< attention_qkv: heads are inside packed q, k, v rows
  bool hasSlices = false;                ///< attention_part: on slices of sequences
  const AttentionPiece *piece = nullptr; ///< for attention_part: the part to compute
};

/// Types, extents and attributes of the call, from which the kernel follows.
AttentionKind attentionKindOf(const Call &call, const AttentionOp &op);

/// Returns null, or the reason why no kernel of the GPU supports the call's types, shapes and
/// attributes. It does not check addresses.
const char *attentionRefusal(const Call &call, const AttentionOp &op, const GpuTraits &gpu);

/// Types, extents and attributes of a matrix product with one operand per expert, or of its
/// gradient.
GroupedKind groupedKindOf(const Call &call);

/// The properties of a call of delta_rule, state_scan, or of their gradients.
DeltaKind deltaKindOf(const Call &call);
/// The kernels that compute such a call.
KernelPath deltaPathOf(const Call &call);

} // namespace shardc::kernels::cuda
