// The last step of sums over rows, such as bias gradients: adds the partial sums of all blocks of
// rows, in a fixed order, so that repeated runs have the same bits.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// The destinations of up to two results, each with `cols` elements.
struct ColumnTargets {
  Data out[2];
};

inline constexpr int kColumnLanes = 16;

/// out (+)= sum over p of partials[p, :], for each of gridDim.y results. A block has 32 columns and
/// 16 lanes. Each lane adds every 16th partial sum, then the lanes are added in order.
static __global__ void __launch_bounds__(kWarp *kColumnLanes)
    addPartials(const float *partials, int count, int64_t cols, const ColumnTargets targets) {
  awaitPrevious();
  __shared__ float lanes[kColumnLanes][kWarp];
  int64_t c = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  int results = static_cast<int>(gridDim.y), which = static_cast<int>(blockIdx.y);
  float total = 0;
  if (c < cols)
#pragma unroll 8
    for (int p = static_cast<int>(threadIdx.y); p < count; p += kColumnLanes)
      total += partials[(static_cast<int64_t>(p) * results + which) * cols + c];
  lanes[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols)
    return;
  total = 0;
#pragma unroll
  for (int lane = 0; lane < kColumnLanes; ++lane)
    total += lanes[lane][threadIdx.x];
  setElement(targets.out[which], c, total);
}

/// Enqueues addPartials for `partials`, f32 [count, results, cols], which earlier kernels of the
/// same queue have written.
inline void launchAddPartials(const Call &call, const float *partials, int count, int results,
                              int64_t cols, const ColumnTargets &targets) {
  dim3 grid(static_cast<unsigned>(ceilDiv(cols, kWarp)), static_cast<unsigned>(results));
  launchKernel(addPartials, grid, dim3(kWarp, kColumnLanes), 0, queueOf(call), partials, count,
               cols, targets);
}

} // namespace shardc::kernels::cuda
