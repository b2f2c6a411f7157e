// Reads the properties of a call from its attributes and shapes, as compiler/predict/Kernels.cpp
// reads those of a plan's op. Both must agree, since the compiler predicts which kernels run.
#include "kernels/cuda/AttentionCall.h"

#include "runtime/base/Float8.h"

namespace shardc::kernels::cuda {

/// The operands of a backward op begin with dO, so all others are one place further back.
AttentionKind attentionKindOf(const Call &call, const AttentionOp &op) {
  const Tensor &queries = call.in[op.backward ? 1 : 0];
  const Attrs &attrs = call.attrs;
  AttentionKind kind{.type = queries.dtype,
                     .drops = attrs.p > 0,
                     .isCausal = attrs.causal,
                     .hasDocuments = attrs.reset_mask,
                     .hasWindow = attrs.window >= 0,
                     .hasChunks = attrs.chunk > 0,
                     .isCapped = attrs.soft_cap > 0,
                     .packed = op.packed,
                     .hasSlices = op.hasSlices,
                     .hasUnknownOrder = op.hasSlices && attrs.causal && attrs.slices == 0,
                     .isGradient = op.backward};
  kind.hasAllKeys = op.hasSlices && call.in[op.backward ? 2 : 1].shape[1] > queries.shape[1];
  if (op.packed) {
    kind.heads = attrs.num_heads, kind.groups = attrs.num_groups;
    kind.channels = kind.values = attrs.head_dim;
  } else {
    kind.heads = queries.shape[2], kind.channels = queries.shape[3];
    kind.groups = call.in[op.backward ? 2 : 1].shape[2];
    kind.values = call.in[op.backward ? 3 : 2].shape[3];
  }
  return kind;
}

const char *attentionRefusal(const Call &call, const AttentionOp &op, const GpuTraits &gpu) {
  return shardc::attentionRefusal(attentionKindOf(call, op), gpu);
}

/// The fourth operand is a bias, unless the operands have 8 bits.
GroupedKind groupedKindOf(const Call &call) {
  const Tensor &a = call.in[0], &c = call.out[0];
  const auto recipe = static_cast<Fp8Factors>(call.attrs.fp8_recipe);
  GroupedKind kind;
  kind.k = a.cols(), kind.m = c.cols(), kind.groups = call.in[2].numel();
  kind.hasSmallBlocks = recipe == Fp8Factors::Mxfp8;
  kind.type = recipe == Fp8Factors::None ? a.dtype : DType::F8E4M3;
  if (recipe == Fp8Factors::None)
    kind.hasOneType = call.in[1].dtype == a.dtype &&
                      (c.dtype == a.dtype || (c.rank == 3 && c.dtype == DType::F32)) &&
                      (call.inCount <= 3 || call.in[3].dtype == c.dtype);
  return kind;
}

DeltaKind deltaKindOf(const Call &call) {
  const int first = call.outCount == 1 ? 0 : 1; // the gradient begins with that of the result
  const Tensor &q = call.in[first];
  return {.type = q.dtype,
          .keys = q.cols(),
          .values = call.in[first + 2].cols(),
          .isScan = call.in[first + 4].rank == 1}; // delta_rule has a number per position there
}

} // namespace shardc::kernels::cuda
