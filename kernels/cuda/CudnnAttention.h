// Attention by cuDNN's fused kernels, through its header-only frontend: bf16 or f16, causal or
// full, with windows, grouped queries; no dropout, because its masks differ from ours, and no
// documents. A graph is built once per shape and kept; that takes tens of milliseconds on the host
// and no device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Context.h"

namespace shardc::kernels::cuda {

/// Some rows of each sample's queries, and its first keys. Causal: the last query sees all of them,
/// the one before one less.
struct AttentionPiece {
  int64_t firstQuery = 0, queries = 0, keys = 0;
  bool causal = false;
  float *statistics = nullptr; ///< f32[B, N, queries], where the call runs
};

/// The op that a call belongs to.
struct AttentionOp {
  bool backward = false;
  bool packed = false; ///< attention_qkv: reads and writes heads in the rows of q, k and v
  const AttentionPiece *piece = nullptr; ///< attention_part: what of it
};

/// A context's part of cuDNN: its handles, and the graphs that were built; null without cuDNN.
std::shared_ptr<AttentionLibrary> makeAttentionLibrary();

/// True if cuDNN supports this call; builds its graph on first use.
bool hasCudnnAttention(const Call &call, AttentionOp op);

/// Bytes of scratch of a call that cuDNN supports.
int64_t cudnnAttentionWorkspace(const Call &call, AttentionOp op);

/// Enqueues the call. Failures are reported to its queue.
void runCudnnAttention(const Call &call, AttentionOp op, void *workspace);

} // namespace shardc::kernels::cuda
