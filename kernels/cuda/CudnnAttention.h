// Attention by cuDNN's fused kernels, through its header-only frontend: bf16 or f16, causal or
// full, with windows, grouped queries; no dropout, because its masks differ from ours, and no
// documents. A graph is built once per shape and kept; that takes tens of milliseconds on the host
// and no device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/Context.h"

namespace shardc::kernels::cuda {

/// A context's part of cuDNN: its handles, and the graphs that were built; null without cuDNN.
std::shared_ptr<AttentionLibrary> makeAttentionLibrary();

/// True if cuDNN supports this call; builds its graph on first use.
bool hasCudnnAttention(const Call &call, AttentionOp op);

/// Bytes of scratch of a call that cuDNN supports.
int64_t cudnnAttentionWorkspace(const Call &call, AttentionOp op);

/// Enqueues the call. Failures are reported to its queue.
void runCudnnAttention(const Call &call, AttentionOp op, void *workspace);

} // namespace shardc::kernels::cuda
