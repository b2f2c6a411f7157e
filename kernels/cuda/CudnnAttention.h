// Attention by cuDNN's fused kernels, through its header-only frontend: bf16, causal or full,
// grouped queries; no dropout (its masks are not ours) and no documents. A graph is built once for
// each shape and kept; building takes tens of milliseconds on the host and no device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// Which op a call is of.
struct AttentionOp {
  bool backward = false;
  bool packed = false; ///< attention_qkv: heads are read and written in the rows of q, k and v
};

/// True if cuDNN serves this call; builds its graph the first time.
bool hasCudnnAttention(const Call &call, AttentionOp op);

/// Bytes of scratch of a call that cuDNN serves.
int64_t cudnnAttentionWorkspace(const Call &call, AttentionOp op);

/// Queues it. Failures are reported (Errors.h).
void runCudnnAttention(const Call &call, AttentionOp op, void *workspace);

} // namespace shardc::kernels::cuda
