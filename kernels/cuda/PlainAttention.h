// Hand-written attention for every type, mask, head size up to 256, and dropout. Used where cuDNN's
// attention does not support the call.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

inline constexpr int64_t kPlainChannelsMax = 256;

/// Null, or why the hand-written kernels do not have a call with these queries and values; what
/// they lack cuDNN may have.
inline const char *plainRefusal(const Tensor &q, const Tensor &v) {
  if (q.cols() > kPlainChannelsMax)
    return "a head has more than 256 channels";
  return q.cols() != v.cols()
             ? "values have another number of channels than keys, which cuDNN alone "
               "computes, in bf16 and f16 without dropout and documents"
             : nullptr;
}

/// Operands and results as those of the op `attention`, or of `attention_part`.
void launchPlainAttention(const Call &call, bool isPart = false);

/// Operands and results as those of `attention_bwd`, or of `attention_part_bwd`; `delta` has room
/// for f32[B,N,S].
void launchPlainAttentionBwd(const Call &call, float *delta, bool isPart = false);

} // namespace shardc::kernels::cuda
