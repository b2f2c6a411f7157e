// Hand-written attention for every type, mask, head size up to 256, and dropout. Used where cuDNN's
// attention does not support the call.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// Operands and results as those of the op `attention`, or of `attention_part`.
void launchPlainAttention(const Call &call, bool isPart = false);

/// Operands and results as those of `attention_bwd`, or of `attention_part_bwd`; `delta` has room
/// for f32[B,N,S].
void launchPlainAttentionBwd(const Call &call, float *delta, bool isPart = false);

} // namespace shardc::kernels::cuda
