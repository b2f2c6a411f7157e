// Attention on Hopper's tensor cores for what cuDNN lacks: documents, chunks of a sequence, soft
// caps. bf16 and f16, heads of 64 or 128 channels, no dropout.
#pragma once

#include "kernels/cuda/AttentionCall.h"

namespace shardc::kernels::cuda {

/// Whether these kernels have the call: its kind, the alignment of its operands, the device.
bool hasTileAttention(const Call &call, const AttentionOp &op);

/// Operands and results as those of the op `attention`, `attention_qkv` or `attention_part`.
void launchTileAttention(const Call &call, const AttentionOp &op);

/// Enqueues the gradients; `delta` is scratch memory for f32[B,N,queries].
void launchTileAttentionBwd(const Call &call, const AttentionOp &op, float *delta);

} // namespace shardc::kernels::cuda
