// Attention on Hopper's tensor cores for features that cuDNN lacks: documents, chunked attention,
// soft caps. Supports bf16 and f16 and heads of 64 or 128 channels, without dropout.
#pragma once

#include "kernels/cuda/AttentionCall.h"

namespace shardc::kernels::cuda {

/// The version of PTX times 10 from which the device's code comes; 0: it has none.
int tileAttentionCode();

/// Whether a call that takes this path has operands of one type that begin at 16 bytes.
bool hasTileAttention(const Call &call, const AttentionOp &op);

/// Enqueues the call, with the operands and results of `attention`, `attention_qkv` or
/// `attention_part`.
void launchTileAttention(const Call &call, const AttentionOp &op);

/// Enqueues the gradients; `delta` is scratch memory for f32[B,N,queries].
void launchTileAttentionBwd(const Call &call, const AttentionOp &op, float *delta);

} // namespace shardc::kernels::cuda
