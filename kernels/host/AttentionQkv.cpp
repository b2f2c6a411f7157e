// Attention and its gradient on packed rows [G, N/G + 2, D] of queries, keys and values. Executes
// split_qkv, attention or attention_bwd, and merge_qkv, with the parts in scratch. Data are f32,
// bf16 or f16 each; parts have the type of the rows to which they belong. Limited like attention.
#include "kernels/host/AttentionQkv.h"

#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

void takeParts(QkvParts &parts, Scratch &scratch) {
  for (Tensor *part : {&parts.q, &parts.k, &parts.v})
    part->data = scratch.take<std::byte>(part->numel() * dtypeBytes(part->dtype));
}

struct Buffers {
  QkvParts parts;
  std::byte *inner;
  size_t innerBytes;

  Buffers(const Call &call, Scratch &scratch) : parts(call.in[0], call.attrs) {
    takeParts(parts, scratch);
    AttentionQkvCalls calls(call, parts);
    innerBytes =
        std::max(kSplitQkv.workspaceBytes(calls.split), kAttention.workspaceBytes(calls.attention));
    inner = scratch.take<std::byte>(static_cast<int64_t>(innerBytes));
  }
};

struct BwdBuffers {
  QkvParts parts, gradients;
  std::byte *inner;
  size_t innerBytes;

  BwdBuffers(const Call &call, Scratch &scratch)
      : parts(call.in[1], call.attrs), gradients(call.out[0], call.attrs) {
    takeParts(parts, scratch);
    takeParts(gradients, scratch);
    AttentionQkvBwdCalls calls(call, parts, gradients);
    innerBytes = std::max({kSplitQkv.workspaceBytes(calls.split),
                           kAttentionBwd.workspaceBytes(calls.attention),
                           kMergeQkv.workspaceBytes(calls.merge)});
    inner = scratch.take<std::byte>(static_cast<int64_t>(innerBytes));
  }
};

template <typename TBuffers>
void runInner(const Kernel &kernel, Call call, const TBuffers &buffers) {
  call.workspace = buffers.inner;
  call.workspaceBytes = buffers.innerBytes;
  kernel.run(call);
}

const char *checkHeads(const Tensor &qkv, const Attrs &attrs) {
  SHARDC_REQUIRE(isData(qkv) && qkv.rank == 3, "qkv is not rows of heads");
  SHARDC_REQUIRE(attrs.num_heads > 0 && attrs.num_groups > 0 && attrs.head_dim > 0,
                 "heads, groups or channels are not named");
  SHARDC_REQUIRE(attrs.num_heads % attrs.num_groups == 0,
                 "key/value heads do not divide the query heads");
  SHARDC_REQUIRE(attrs.num_heads <= qkv.cols() && qkv.cols() % attrs.head_dim == 0 &&
                     qkv.cols() / attrs.head_dim == attrs.num_heads + 2 * attrs.num_groups,
                 "a row of qkv is not as long as its queries, keys and values");
  return nullptr;
}

const char *accepts(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 2, 2}));
  return checkAttentionQkv(call, false);
}

void run(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  AttentionQkvCalls calls(call, buffers.parts);
  runInner(kSplitQkv, calls.split, buffers);
  runInner(kAttention, calls.attention, buffers);
}

const char *acceptsBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {6, 6, 1, 1}));
  return checkAttentionQkv(call, true);
}

void runBwd(const Call &call) {
  Scratch scratch(call);
  BwdBuffers buffers(call, scratch);
  AttentionQkvBwdCalls calls(call, buffers.parts, buffers.gradients);
  runInner(kSplitQkv, calls.split, buffers);
  runInner(kAttentionBwd, calls.attention, buffers);
  runInner(kMergeQkv, calls.merge, buffers);
}

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

const char *checkAttentionQkv(const Call &call, bool backward) {
  const Tensor &qkv = call.in[backward ? 1 : 0];
  SHARDC_REQUIRE_OK(checkHeads(qkv, call.attrs));
  QkvParts parts(qkv, call.attrs);
  if (!backward)
    return kAttention.accepts(AttentionQkvCalls(call, parts).attention);
  SHARDC_REQUIRE(isData(call.out[0]) && call.out[0].rank == 3 &&
                     std::equal(qkv.shape, qkv.shape + 3, call.out[0].shape),
                 "the gradient differs in shape from what it belongs to");
  QkvParts gradients(call.out[0], call.attrs);
  return kAttentionBwd.accepts(AttentionQkvBwdCalls(call, parts, gradients).attention);
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

const Kernel kAttentionQkv = {"attention_qkv_host", run, accepts, workspaceOf<Buffers>};
const Kernel kAttentionQkvBwd = {"attention_qkv_bwd_host", runBwd, acceptsBwd,
                                 workspaceOf<BwdBuffers>};

} // namespace shardc::kernels::host
