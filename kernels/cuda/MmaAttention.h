// Attention on tensor cores by mma.sync, on every GPU since Ampere: for what the kernels of
// TileAttention.h and cuDNN lack, such as dropout, and for GPUs without wgmma. Supports bf16 and
// f16 and heads of up to 256 channels.
#pragma once

#include "kernels/cuda/AttentionCall.h"

namespace shardc::kernels::cuda {

/// Whether a call that takes this path has operands of one type that begin at 16 bytes.
bool hasMmaAttention(const Call &call, const AttentionOp &op);

/// Enqueues the call, with the operands and results of `attention`, `attention_qkv` or
/// `attention_part`.
void launchMmaAttention(const Call &call, const AttentionOp &op);

/// Enqueues the gradients; `delta` is scratch memory for f32[B,N,queries].
void launchMmaAttentionBwd(const Call &call, const AttentionOp &op, float *delta);

} // namespace shardc::kernels::cuda
