// attention, attention_qkv and their gradients. cuDNN's fused kernels are used if they support the
// call (bf16 or f16, no dropout, no documents); else the kernels of attention_tiles.cu, on Hopper's
// tensor cores; else those of attention_mma.cu, on the tensor cores of any GPU since Ampere; else
// those of plain_attention.cu. The first three read and write heads in place in the rows of q, k
// and v. For plain_attention.cu, heads are copied to scratch. cuDNN on an H200, 2026-11, in TFLOP/s
// (a matrix product reaches 801): 4,096 positions, 32 heads of 128, 8 groups: 531 forward, 437
// backward, 392 deterministic; GPT-2's 1,024 positions, heads of 64: 288, 228, 204.
#include <algorithm>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/CudnnAttention.h"
#include "kernels/cuda/MmaAttention.h"
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/TileAttention.h"
#include "runtime/base/Reports.h"

namespace shardc::kernels::cuda {

#ifndef SHARDC_HAS_CUDNN
std::shared_ptr<AttentionLibrary> makeAttentionLibrary() { return nullptr; }
int cudnnVersion() { return 0; }
bool hasCudnnAttention(const Call &, AttentionOp) { return false; }
int64_t cudnnAttentionWorkspace(const Call &, AttentionOp) { return 0; }
void runCudnnAttention(const Call &, AttentionOp, void *) {}
#endif

KernelPath attentionPathOf(const Call &call, const AttentionOp &op, bool isByCudnn,
                           bool fewQueries) {
  if (isByCudnn)
    return KernelPath::AttentionCudnn;
  const Context &context = contextOf(call);
  const AttentionKind kind = attentionKindOf(call, op);
  GpuTraits gpu = context.gpu();
  gpu.cudnn = 0; // which may have refused the call
  const KernelPath path = kernelPath(kind, gpu);
  if (path == KernelPath::AttentionWgmma && hasTileAttention(call, op))
    return path;
  if (path == KernelPath::AttentionMma && !fewQueries && hasMmaAttention(call, op))
    return path;
  const char *why = pathRefusal(KernelPath::AttentionCudnn, kind, context.gpu());
  if (why && kind.type != DType::F32 && !fewQueries && !context.options().ownKernels)
    context.emit(makeReport(report::AttentionOnCudaCores,
                            op.backward ? "the gradient of attention" : "attention", why));
  return KernelPath::AttentionPlain;
}

/// Calls are also judged without a context, by tests and before there is a device.
const char *attentionRefusal(const Call &call, const AttentionOp &op) {
  constexpr int kHopper = 90;
  return attentionRefusal(call, op, call.context ? contextOf(call).gpu() : packagedTraits(kHopper));
}

void launchAttention(const Call &call, const AttentionOp &op, KernelPath path, float *few) {
  if (path == KernelPath::AttentionWgmma)
    launchTileAttention(call, op);
  else if (path == KernelPath::AttentionMma)
    launchMmaAttention(call, op);
  else
    launchPlainAttention(call, op.hasSlices, few);
}

void launchAttentionBwd(const Call &call, const AttentionOp &op, KernelPath path, float *delta) {
  if (path == KernelPath::AttentionWgmma)
    launchTileAttentionBwd(call, op, delta);
  else if (path == KernelPath::AttentionMma)
    launchMmaAttentionBwd(call, op, delta);
  else
    launchPlainAttentionBwd(call, delta, op.hasSlices);
}

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

/// The shapes and types of q, k and v in a call's packed qkv (or of their gradients). Addresses are
/// null.
struct QkvParts {
  Tensor q, k, v;

  QkvParts(const Tensor &qkv, const Attrs &attrs) {
    q.dtype = qkv.dtype;
    q.rank = 4;
    q.shape[0] = qkv.shape[0], q.shape[1] = qkv.shape[1];
    q.shape[2] = attrs.num_heads, q.shape[3] = attrs.head_dim;
    k = v = q;
    k.shape[2] = v.shape[2] = attrs.num_groups;
  }
};

/// The calls that make up attention_qkv, for the kernels that need queries, keys and values apart:
/// split_qkv and attention, with the parts in scratch. The caller sets their workspaces.
struct AttentionQkvCalls {
  Call split, attention;

  AttentionQkvCalls(const Call &call, const QkvParts &parts)
      : split(partOfOwnRows(call)), attention(partOf(call)) {
    take(split, {call.in[0]}, {parts.q, parts.k, parts.v});
    take(attention, {parts.q, parts.k, parts.v, call.in[1], call.in[2]},
         {call.out[0], call.out[1]});
  }
};

/// The same for attention_qkv_bwd: split_qkv, attention_bwd and merge_qkv.
struct AttentionQkvBwdCalls {
  Call split, attention, merge;

  AttentionQkvBwdCalls(const Call &call, const QkvParts &parts, const QkvParts &gradients)
      : split(partOfOwnRows(call)), attention(partOf(call)), merge(partOfOwnRows(call)) {
    take(split, {call.in[1]}, {parts.q, parts.k, parts.v});
    take(attention,
         {call.in[0], parts.q, parts.k, parts.v, call.in[2], call.in[3], call.in[4], call.in[5]},
         {gradients.q, gradients.k, gradients.v});
    take(merge, {gradients.q, gradients.k, gradients.v}, {call.out[0]});
  }
};

KernelPath pathOf(const Call &call, const AttentionOp &op) {
  return attentionPathOf(call, op, hasCudnnAttention(call, op));
}

/// cuDNN has a workspace of its own; the other kernels need dot(dO, O) of every row, only in the
/// backward op.
template <bool kBackward> struct Buffers {
  static constexpr AttentionOp kOp = {kBackward};
  KernelPath path;
  std::byte *cudnn = nullptr;
  float *delta = nullptr;

  Buffers(const Call &call, Scratch &scratch) : path(pathOf(call, kOp)) {
    if (path == KernelPath::AttentionCudnn)
      cudnn = scratch.take<std::byte>(cudnnAttentionWorkspace(call, kOp));
    else if (kBackward)
      delta = scratch.take<float>(call.in[5].numel());
  }
};

template <bool kBackward> const char *accepts(const Call &call) {
  const Kernel &oracle = kBackward ? host::kAttentionBwd : host::kAttention;
  const char *reason = oracle.accepts(call);
  return reason ? reason : attentionRefusal(call, {kBackward});
}

template <bool kBackward> void run(const Call &call, const Buffers<kBackward> &buffers) {
  constexpr AttentionOp kOp = Buffers<kBackward>::kOp;
  if (buffers.path == KernelPath::AttentionCudnn)
    runCudnnAttention(call, kOp, buffers.cudnn);
  else if (kBackward)
    launchAttentionBwd(call, kOp, buffers.path, buffers.delta);
  else
    launchAttention(call, kOp, buffers.path);
}

/// Scratch of a call on packed q, k and v: cuDNN's workspace, or the unpacked parts and their
/// gradients.
template <bool kBackward> struct QkvBuffers {
  static constexpr AttentionOp kOp = {kBackward, true};
  KernelPath path;
  std::byte *cudnn = nullptr;
  QkvParts parts, gradients;
  float *delta = nullptr;

  QkvBuffers(const Call &call, Scratch &scratch)
      : path(pathOf(call, kOp)), parts(call.in[kBackward ? 1 : 0], call.attrs), gradients(parts) {
    if (path == KernelPath::AttentionCudnn) {
      cudnn = scratch.take<std::byte>(cudnnAttentionWorkspace(call, kOp));
      return;
    }
    if (kBackward)
      delta = scratch.take<float>(call.in[3].numel());
    if (!info(path).isOnCudaCores())
      return;
    take(parts, scratch);
    if (!kBackward)
      return;
    gradients = QkvParts(call.out[0], call.attrs);
    take(gradients, scratch);
  }

private:
  static void take(QkvParts &parts, Scratch &scratch) {
    for (Tensor *part : {&parts.q, &parts.k, &parts.v})
      part->data = scratch.take<std::byte>(part->numel() * dtypeBytes(part->dtype));
  }
};

template <bool kBackward> const char *acceptsQkv(const Call &call) {
  const Kernel &oracle = kBackward ? host::kAttentionQkvBwd : host::kAttentionQkv;
  if (const char *reason = oracle.accepts(call))
    return reason;
  const Attrs &attrs = call.attrs; // the host takes these from the shapes of its values
  if (attrs.num_heads <= 0 || attrs.num_groups <= 0 || attrs.head_dim <= 0)
    return "heads, groups or channels are not named";
  return attentionRefusal(call, {kBackward, true});
}

/// cuDNN and the kernels on tiles read packed heads. The plain kernels need them split, so split
/// and merge are separate launches.
template <bool kBackward> void runQkv(const Call &call, const QkvBuffers<kBackward> &buffers) {
  constexpr AttentionOp kOp = QkvBuffers<kBackward>::kOp;
  if (buffers.path == KernelPath::AttentionCudnn)
    return runCudnnAttention(call, kOp, buffers.cudnn);
  if (!info(buffers.path).isOnCudaCores())
    return kBackward ? launchAttentionBwd(call, kOp, buffers.path, buffers.delta)
                     : launchAttention(call, kOp, buffers.path);
  if constexpr (kBackward) {
    AttentionQkvBwdCalls calls(call, buffers.parts, buffers.gradients);
    kSplitQkv.run(calls.split);
    launchPlainAttentionBwd(calls.attention, buffers.delta);
    kMergeQkv.run(calls.merge);
  } else {
    AttentionQkvCalls calls(call, buffers.parts);
    kSplitQkv.run(calls.split);
    launchPlainAttention(calls.attention);
  }
}

} // namespace

const Kernel kAttention = kernelOf("attention_cuda", accepts<false>, withBuffers<run<false>>);
const Kernel kAttentionBwd = kernelOf("attention_bwd_cuda", accepts<true>, withBuffers<run<true>>);
const Kernel kAttentionQkv =
    kernelOf("attention_qkv_cuda", acceptsQkv<false>, withBuffers<runQkv<false>>);
const Kernel kAttentionQkvBwd =
    kernelOf("attention_qkv_bwd_cuda", acceptsQkv<true>, withBuffers<runQkv<true>>);

} // namespace shardc::kernels::cuda
