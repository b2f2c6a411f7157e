// Attention by cuDNN's fused kernels, through its header-only frontend. Supports bf16 and f16,
// causal and full masks, windows and grouped queries. Does not support dropout, because cuDNN draws
// other masks than we do, nor document masks. A graph is built once per shape and cached; this
// takes tens of milliseconds on the host and no device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/Context.h"

namespace shardc::kernels::cuda {

/// A context's cuDNN state: handles and cached graphs; null in a build without cuDNN.
std::shared_ptr<AttentionLibrary> makeAttentionLibrary();

/// The version of the library that is loaded; 0 in a build without it.
int cudnnVersion();

/// Returns whether cuDNN supports this call. Builds the call's graph if there is none yet.
bool hasCudnnAttention(const Call &call, AttentionOp op);

/// The path of a call, given whether cuDNN supports it. Warns of 16-bit attention on CUDA cores
/// unless it is `fewQueries`, which keep them busy.
KernelPath attentionPathOf(const Call &call, const AttentionOp &op, bool isByCudnn,
                           bool fewQueries = false);

/// Enqueues a call, or its gradients, on a path that is not cuDNN's. `few`: see
/// launchPlainAttention(); `delta` is scratch f32[B,N,queries].
void launchAttention(const Call &call, const AttentionOp &op, KernelPath path,
                     float *few = nullptr);
void launchAttentionBwd(const Call &call, const AttentionOp &op, KernelPath path, float *delta);

/// Null, or the reason why no kernel of the GPU supports the call.
const char *attentionRefusal(const Call &call, const AttentionOp &op);

/// Workspace in bytes of a call that cuDNN supports.
int64_t cudnnAttentionWorkspace(const Call &call, AttentionOp op);

/// Enqueues the call. Failures are reported to its queue.
void runCudnnAttention(const Call &call, AttentionOp op, void *workspace);

} // namespace shardc::kernels::cuda
