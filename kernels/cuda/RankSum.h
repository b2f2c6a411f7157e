// Adds the contributions of several ranks, in rank order, from receive buffers. The channels of the
// CUDA backend use it. It is not in Kernels.def, because no op consists of this sum alone. A failed
// launch is CUDA's last error.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/cuda/Launch.h"
#include "runtime/base/DType.h"
#include "runtime/base/Reduction.h"

namespace shardc::kernels::cuda {

/// out (+)= sum over p of piece p, in the order of p, divided by `count` if `average`. Sums are
/// fp32, or fp64 for f64. For f32, bf16 and f16, the kernel can also compute the fp64 sum of the
/// squares of the valid elements of the resulting `out`.
struct RankSum {
  const void *pieces = nullptr; ///< piece p at p·stride elements
  const void *own = nullptr;    ///< replaces piece `index`
  int count = 0, index = 0;
  int64_t stride = 0, elements = 0;
  DType inType = DType::F32, outType = DType::F32;
  void *out = nullptr;
  bool average = false, accumulate = false;
  double *squares = nullptr;           ///< null: not requested
  double *partials = nullptr;          ///< scratch of squareSumsOf(elements) numbers
  std::span<const ElementRange> valid; ///< in order and disjoint; read before the launch returns
};
/// Enqueues the sum. The buffers are the caller's.
void launchRankSum(const RankSum &sum, Queue &queue);

/// Loads the kernels on the current device. Without it, the first launch loads them and waits for
/// all running work. That is a deadlock if an NCCL kernel is running that waits for a rank of this
/// thread.
cudaError_t loadRankSum();

} // namespace shardc::kernels::cuda
