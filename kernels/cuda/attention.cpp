// attention, attention_qkv and their gradients. cuDNN's fused kernels are used if they support the
// call (bf16 or f16, no dropout, no documents), otherwise the hand-written kernels of
// plain_attention.cu. cuDNN reads and writes heads in place in the rows of q, k and v; for the
// others, heads are copied to scratch. H200, 2026-11, in TFLOP/s (a product reaches 801): 4,096
// positions, 32 heads of 128, 8 groups: 531 forward, 437 backward, 392 deterministic; GPT-2's 1,024
// positions, heads of 64: 288, 228, 204.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/CudnnAttention.h"
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Rows.h"
#include "kernels/host/AttentionQkv.h"
#include "runtime/base/Reports.h"

namespace shardc::kernels::cuda {

#ifndef SHARDC_HAS_CUDNN
std::shared_ptr<AttentionLibrary> makeAttentionLibrary() { return nullptr; }
bool hasCudnnAttention(const Call &call, AttentionOp) {
  if (call.in[0].dtype != DType::F32 && !contextOf(call).options().ownKernels)
    contextOf(call).tell(makeReport(report::NoCudnn));
  return false;
}
int64_t cudnnAttentionWorkspace(const Call &, AttentionOp) { return 0; }
void runCudnnAttention(const Call &, AttentionOp, void *) {}
#endif

namespace {

/// Scratch of a call; its shapes, types and attributes determine the kernels.
template <bool kBackward> struct Buffers {
  bool byCudnn;
  std::byte *cudnn = nullptr;
  float *delta = nullptr;

  Buffers(const Call &call, Scratch &scratch) : byCudnn(hasCudnnAttention(call, {kBackward})) {
    if (byCudnn)
      cudnn = scratch.take<std::byte>(cudnnAttentionWorkspace(call, {kBackward}));
    else if (kBackward)
      delta = scratch.take<float>(call.in[5].numel());
  }
};

template <bool kBackward> const char *accepts(const Call &call) {
  const Kernel &oracle = kBackward ? host::kAttentionBwd : host::kAttention;
  if (const char *reason = oracle.accepts(call))
    return reason;
  if (const char *reason = attentionRefusal(call, {kBackward}))
    return reason;
  // Whether cuDNN serves the call is known with a device. Without one it is asked again when it is
  // bound.
  const char *lack = plainAttentionRefusal(attentionKindOf(call, {kBackward}));
  return lack && call.context && !hasCudnnAttention(call, {kBackward}) ? lack : nullptr;
}

template <bool kBackward> void run(const Call &call) {
  Scratch scratch(call);
  Buffers<kBackward> buffers(call, scratch);
  if (buffers.byCudnn)
    runCudnnAttention(call, {kBackward}, buffers.cudnn);
  else if (kBackward)
    launchPlainAttentionBwd(call, buffers.delta);
  else
    launchPlainAttention(call);
}

/// Scratch of a call on the rows of q, k and v: cuDNN's, or the parts and their gradients.
template <bool kBackward> struct QkvBuffers {
  static constexpr AttentionOp kOp = {kBackward, true};
  bool byCudnn;
  std::byte *cudnn = nullptr;
  host::QkvParts parts, gradients;
  float *delta = nullptr;

  QkvBuffers(const Call &call, Scratch &scratch)
      : byCudnn(hasCudnnAttention(call, kOp)), parts(call.in[kBackward ? 1 : 0], call.attrs),
        gradients(parts) {
    if (byCudnn) {
      cudnn = scratch.take<std::byte>(cudnnAttentionWorkspace(call, kOp));
      return;
    }
    take(parts, scratch);
    if (!kBackward)
      return;
    gradients = host::QkvParts(call.out[0], call.attrs);
    take(gradients, scratch);
    delta = scratch.take<float>(call.in[3].numel());
  }

private:
  static void take(host::QkvParts &parts, Scratch &scratch) {
    for (Tensor *part : {&parts.q, &parts.k, &parts.v})
      part->data = scratch.take<std::byte>(part->numel() * dtypeBytes(part->dtype));
  }
};

template <bool kBackward> const char *acceptsQkv(const Call &call) {
  const Kernel &oracle = kBackward ? host::kAttentionQkvBwd : host::kAttentionQkv;
  if (const char *reason = oracle.accepts(call))
    return reason;
  return attentionRefusal(call, {kBackward, true});
}

template <bool kBackward> void runQkv(const Call &call) {
  Scratch scratch(call);
  QkvBuffers<kBackward> buffers(call, scratch);
  if (buffers.byCudnn)
    return runCudnnAttention(call, QkvBuffers<kBackward>::kOp, buffers.cudnn);
  if constexpr (kBackward) {
    host::AttentionQkvBwdCalls calls(call, buffers.parts, buffers.gradients);
    kSplitQkv.run(calls.split);
    launchPlainAttentionBwd(calls.attention, buffers.delta);
    kMergeQkv.run(calls.merge);
  } else {
    host::AttentionQkvCalls calls(call, buffers.parts);
    kSplitQkv.run(calls.split);
    launchPlainAttention(calls.attention);
  }
}

} // namespace

const Kernel kAttention = {"attention_cuda", run<false>, accepts<false>,
                           workspaceOf<Buffers<false>>};
const Kernel kAttentionBwd = {"attention_bwd_cuda", run<true>, accepts<true>,
                              workspaceOf<Buffers<true>>};
const Kernel kAttentionQkv = {"attention_qkv_cuda", runQkv<false>, acceptsQkv<false>,
                              workspaceOf<QkvBuffers<false>>};
const Kernel kAttentionQkvBwd = {"attention_qkv_bwd_cuda", runQkv<true>, acceptsQkv<true>,
                                 workspaceOf<QkvBuffers<true>>};

} // namespace shardc::kernels::cuda
