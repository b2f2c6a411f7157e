// Adds the versions of several ranks in rank order, for the CUDA backend's channels, from receive
// buffers. No op is only this sum, so it is not in Kernels.def. Launch errors are CUDA's last
// error.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/cuda/Launch.h"
#include "runtime/base/DType.h"
#include "runtime/base/Reduction.h"

namespace shardc::kernels::cuda {

/// out (+)= sum over p of piece p, divided by their number if `average`; in fp32, or fp64 for f64,
/// in the order of p. For f32, bf16 and f16 also computes the sum of the squares of the valid
/// elements of `out` afterwards, in fp64.
struct RankSum {
  const void *pieces = nullptr; ///< piece p at p·stride elements
  const void *own = nullptr;    ///< replaces piece `index`
  int count = 0, index = 0;
  int64_t stride = 0, elements = 0;
  DType inType = DType::F32, outType = DType::F32;
  void *out = nullptr;
  bool average = false, accumulate = false;
  double *squares = nullptr;           ///< null: not requested
  double *partials = nullptr;          ///< squareSumsOf(elements) of them
  std::span<const ElementRange> valid; ///< in order and disjoint; read before the launch returns
};
void launchRankSum(const RankSum &sum, Queue &queue);

/// Loads the kernels on the current device. Otherwise the first launch loads them and waits for all
/// running work, which deadlocks if that includes an NCCL kernel that waits for a rank of this
/// thread.
cudaError_t loadRankSum();

} // namespace shardc::kernels::cuda
