// The mapping of rows to threads in norms, which keep rows in registers. A row of up to 1,024
// elements has one warp, and a block has eight such rows without a barrier. Longer rows have a
// block with as many warps as they need. A thread holds up to four chunks of 8 elements; rows
// beyond 16,384 elements do not fit.
#pragma once

#include "kernels/cuda/common.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {

inline constexpr int kSlots = 4;    ///< chunks of a row that a thread holds
inline constexpr int kRowWarps = 8; ///< of a block whose warps have a row each
inline constexpr int kRowThreadsMax = 512;
inline constexpr int64_t kRowColsMax = int64_t{kRowThreadsMax} * kSlots * kChunk; ///< 16384

/// How rows of `cols` elements are laid out.
struct RowLayout {
  int group; ///< threads of a row
  bool warpRows;

  explicit RowLayout(int64_t cols) {
    int64_t warps = ceilDiv(cols, int64_t{kWarp} * kSlots * kChunk);
    warpRows = warps <= 1;
    group = static_cast<int>(std::min<int64_t>(warps * kWarp, kRowThreadsMax));
  }
  int threads() const { return warpRows ? kRowWarps * kWarp : group; }
  int rowsPerBlock() const { return warpRows ? kRowWarps : 1; }
};

/// A thread's position in its row.
struct RowPlace {
  int cols, thread, group;

  __device__ RowPlace(int64_t cols, bool warpRows)
      : cols(static_cast<int>(cols)),
        thread(static_cast<int>(warpRows ? threadIdx.x % kWarp : threadIdx.x)),
        group(static_cast<int>(warpRows ? kWarp : blockDim.x)) {}
  __device__ __forceinline__ int column(int slot) const { return (thread + slot * group) * kChunk; }
  /// Elements of a slot: 8, fewer at the row's end, 0 past it.
  __device__ __forceinline__ int count(int slot) const {
    int left = cols - column(slot);
    return left >= kChunk ? kChunk : left > 0 ? left : 0;
  }
  /// Whether the slot has a chunk; for rows in whole chunks.
  __device__ __forceinline__ bool has(int slot) const { return column(slot) < cols; }
};

/// Adds over the threads of a row; all of them get the sums.
template <int kCount> __device__ __forceinline__ void rowSum(float (&v)[kCount], bool warpRows) {
  if (warpRows) {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      v[k] = warpSum(v[k]);
  } else {
    blockSum(v);
  }
}

/// Null, or the reason why rows do not fit the registers.
inline const char *checkRowLength(int64_t cols) {
  static_assert(kRowColsMax == cudaLimit(CudaLimit::NormColumns).most);
  return cudaRefusal(CudaLimit::NormColumns, cols);
}

} // namespace shardc::kernels::cuda
