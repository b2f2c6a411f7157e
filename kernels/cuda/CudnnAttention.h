// Attention by cuDNN's fused kernels, through its header-only frontend. Supports bf16 and f16,
// causal or full masks, windows and grouped queries. Does not support dropout, because cuDNN's
// masks differ from ours, or document masks. A graph is built once per shape and cached: tens of
// milliseconds on the host, no device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/Context.h"

namespace shardc::kernels::cuda {

/// A context's cuDNN state: handles and cached graphs; null in a build without cuDNN.
std::shared_ptr<AttentionLibrary> makeAttentionLibrary();

/// True if cuDNN supports this call; builds its graph on first use.
bool hasCudnnAttention(const Call &call, AttentionOp op);

/// Workspace in bytes of a call that cuDNN supports.
int64_t cudnnAttentionWorkspace(const Call &call, AttentionOp op);

/// Enqueues the call. Failures are reported to its queue.
void runCudnnAttention(const Call &call, AttentionOp op, void *workspace);

} // namespace shardc::kernels::cuda
