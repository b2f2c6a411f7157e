// Hand-written attention for every type, mask, head size up to 256, and dropout. Used if neither
// cuDNN nor the kernels of TileAttention.h support the call.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// Enqueues `attention` or `attention_part`, with that op's operands and results.
void launchPlainAttention(const Call &call, bool isPart = false);

/// Enqueues `attention_bwd` or `attention_part_bwd`; `delta` is scratch f32[B,N,S].
void launchPlainAttentionBwd(const Call &call, float *delta, bool isPart = false);

} // namespace shardc::kernels::cuda
