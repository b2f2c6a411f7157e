// Attention on Hopper's tensor cores for features that cuDNN lacks: documents, chunked attention,
// soft caps. Supports bf16 and f16 and heads of 64 or 128 channels, without dropout.
#pragma once

#include "kernels/cuda/AttentionCall.h"

namespace shardc::kernels::cuda {

/// Whether these kernels support the call's kind, the alignment of its operands, and the device.
bool hasTileAttention(const Call &call, const AttentionOp &op);

/// Enqueues the call, with the operands and results of `attention`, `attention_qkv` or
/// `attention_part`.
void launchTileAttention(const Call &call, const AttentionOp &op);

/// Enqueues the gradients; `delta` is scratch memory for f32[B,N,queries].
void launchTileAttentionBwd(const Call &call, const AttentionOp &op, float *delta);

} // namespace shardc::kernels::cuda
