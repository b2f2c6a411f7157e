#include "kernels/cuda/AttentionQkv.h"

#include <algorithm>

namespace shardc::kernels::cuda {
namespace {

/// A call with the attributes, stream and microbatch of another, and no operands.
Call partOf(const Call &call) {
  Call part = call;
  part.inCount = part.outCount = 0;
  return part;
}

/// Like partOf(), for split_qkv and merge_qkv. Packed rows contain only this rank's heads, so these
/// ops get no group.
Call partOfOwnRows(const Call &call) {
  Call part = partOf(call);
  part.index = 0, part.groupSize = 1;
  return part;
}

void take(Call &call, std::initializer_list<Tensor> operands, std::initializer_list<Tensor> out) {
  for (const Tensor &operand : operands)
    call.in[call.inCount++] = operand;
  for (const Tensor &result : out)
    call.out[call.outCount++] = result;
}

} // namespace

QkvParts::QkvParts(const Tensor &qkv, const Attrs &attrs) {
  q.dtype = qkv.dtype;
  q.rank = 4;
  q.shape[0] = qkv.shape[0], q.shape[1] = qkv.shape[1];
  q.shape[2] = attrs.num_heads, q.shape[3] = attrs.head_dim;
  k = v = q;
  k.shape[2] = v.shape[2] = attrs.num_groups;
}

AttentionQkvCalls::AttentionQkvCalls(const Call &call, const QkvParts &parts)
    : split(partOfOwnRows(call)), attention(partOf(call)) {
  take(split, {call.in[0]}, {parts.q, parts.k, parts.v});
  take(attention, {parts.q, parts.k, parts.v, call.in[1], call.in[2]}, {call.out[0], call.out[1]});
}

AttentionQkvBwdCalls::AttentionQkvBwdCalls(const Call &call, const QkvParts &parts,
                                           const QkvParts &gradients)
    : split(partOfOwnRows(call)), attention(partOf(call)), merge(partOfOwnRows(call)) {
  take(split, {call.in[1]}, {parts.q, parts.k, parts.v});
  take(attention,
       {call.in[0], parts.q, parts.k, parts.v, call.in[2], call.in[3], call.in[4], call.in[5]},
       {gradients.q, gradients.k, gradients.v});
  take(merge, {gradients.q, gradients.k, gradients.v}, {call.out[0]});
}

} // namespace shardc::kernels::cuda
