// The last step of sums over rows, such as bias gradients: adds the partial sums of all blocks of
// rows, in a fixed order, so that repeated runs have the same bits.
#pragma once

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// The destinations of up to two results, each with `cols` elements.
struct ColumnTargets {
  Data out[3];
};

/// Of a block that sums rows: its warps, and its columns, of which a thread has kChunk.
inline constexpr int kSumWarps = 8, kSumColumns = kWarp * kChunk;
static_assert(kSumWarps * kWarp == kSumColumns, "a thread adds the warps' sums of one column");

/// Adds the sums that the threads of a block have of their columns, warp after warp, and writes
/// partials[blockIdx.y, :].
__device__ __forceinline__ void addWarps(const float (&own)[kChunk], float *partials,
                                         int64_t cols) {
  __shared__ float sums[kSumWarps][kSumColumns];
  int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    sums[thread / kWarp][thread % kWarp * kChunk + j] = own[j];
  __syncthreads();
  int64_t column = int64_t{blockIdx.x} * kSumColumns + thread;
  if (column >= cols)
    return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kSumWarps; ++i)
    total += sums[i][thread];
  partials[blockIdx.y * cols + column] = total;
}

/// Blocks along columns and rows, enough to fill an H200's multiprocessors.
inline dim3 sumGrid(const Tensor &x) {
  constexpr int64_t kBlocks = 528;
  int64_t beside = ceilDiv(x.cols(), kSumColumns);
  int64_t most = std::max<int64_t>(kBlocks / beside, 1);
  return {static_cast<unsigned>(beside),
          static_cast<unsigned>(std::min(ceilDiv(x.rows(), kSumWarps), most))};
}

/// Workspace of a gradient that sums the rows of operand 1 in sumGrid().
struct RowSumBuffers {
  float *partials;

  RowSumBuffers(const Call &call, Scratch &scratch)
      : partials(scratch.take<float>(sumGrid(call.in[1]).y * call.in[1].cols())) {}
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
