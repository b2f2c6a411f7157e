// attention and attention_bwd: cuDNN's fused kernels where they serve the call (bf16, no dropout,
// no documents), else the hand-written ones of plain_attention.cu.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/Rows.h"
#ifdef SHARDC_HAS_CUDNN
#include "kernels/cuda/CudnnAttention.h"
#endif

namespace shardc::kernels::cuda {
namespace {

#ifndef SHARDC_HAS_CUDNN
bool hasCudnnAttention(const Call &, bool) { return false; }
int64_t cudnnAttentionWorkspace(const Call &, bool) { return 0; }
void runCudnnAttention(const Call &, bool, void *) {}
#endif

/// Scratch of a call; which kernels serve it follows from its shapes, types and attributes.
template <bool kBackward> struct Buffers {
  bool byCudnn;
  std::byte *cudnn = nullptr;
  float *delta = nullptr;

  Buffers(const Call &call, Scratch &scratch) : byCudnn(hasCudnnAttention(call, kBackward)) {
    if (byCudnn)
      cudnn = scratch.take<std::byte>(cudnnAttentionWorkspace(call, kBackward));
    else if (kBackward)
      delta = scratch.take<float>(call.in[5].numel());
  }
};

template <bool kBackward> const char *accepts(const Call &call) {
  const Kernel &oracle = kBackward ? host::kAttentionBwd : host::kAttention;
  if (const char *reason = oracle.accepts(call))
    return reason;
  return call.in[kBackward ? 1 : 0].cols() > kPlainChannelsMax ? "a head has more than 256 channels"
                                                               : nullptr;
}

template <bool kBackward> void run(const Call &call) {
  Scratch scratch(call);
  Buffers<kBackward> buffers(call, scratch);
  if (buffers.byCudnn)
    runCudnnAttention(call, kBackward, buffers.cudnn);
  else if (kBackward)
    launchPlainAttentionBwd(call, buffers.delta);
  else
    launchPlainAttention(call);
}

} // namespace

const Kernel kAttention = {"attention_cuda", run<false>, accepts<false>,
                           workspaceOf<Buffers<false>>};
const Kernel kAttentionBwd = {"attention_bwd_cuda", run<true>, accepts<true>,
                              workspaceOf<Buffers<true>>};

} // namespace shardc::kernels::cuda
