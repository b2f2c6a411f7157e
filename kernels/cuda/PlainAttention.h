// Hand-written attention for every type, mask, head size up to 256, and dropout. Used if none of
// cuDNN and the kernels of TileAttention.h and MmaAttention.h support the call.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// The version of PTX times 10 from which the device's code of this kernel comes, and of all others
/// that are not compiled for one architecture alone.
int ordinaryCode();

/// Floats of scratch with which `attention_part` of few queries divides the keys among blocks; 0 if
/// the call has more queries or dropout.
int64_t plainAttentionScratch(const Call &call);

/// Enqueues `attention` or `attention_part`, with that op's operands and results. `scratch`: for
/// parts of few queries, see above; otherwise null.
void launchPlainAttention(const Call &call, bool isPart = false, float *scratch = nullptr);

/// Enqueues `attention_bwd` or `attention_part_bwd`; `delta` is scratch f32[B,N,S].
void launchPlainAttentionBwd(const Call &call, float *delta, bool isPart = false);

} // namespace shardc::kernels::cuda
