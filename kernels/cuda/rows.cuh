// How norms map rows to threads. Rows stay in registers. A warp processes a row of up to 1,024
// elements, and a block processes eight such rows without a barrier. A longer row has a block of
// its own, with as many warps as it needs. A thread holds up to four chunks of 8 elements, so rows
// have at most 16,384 elements.
#pragma once

#include "kernels/cuda/common.cuh"
#include "runtime/base/CudaLimits.h"

namespace shardc::kernels::cuda {

inline constexpr int kSlots = 4;    ///< chunks of a row that a thread holds
inline constexpr int kRowWarps = 8; ///< warps of a block if each warp has its own row
inline constexpr int kRowThreadsMax = 512;
inline constexpr int64_t kRowColsMax = int64_t{kRowThreadsMax} * kSlots * kChunk; ///< 16384

/// The mapping for rows of `cols` elements.
struct RowLayout {
  int group; ///< threads per row
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
  /// Number of elements in a slot: 8, fewer at the row's end, 0 beyond it.
  __device__ __forceinline__ int count(int slot) const {
    int left = cols - column(slot);
    return left >= kChunk ? kChunk : left > 0 ? left : 0;
  }
  /// Whether the slot has a chunk. For rows of whole chunks only.
  __device__ __forceinline__ bool has(int slot) const { return column(slot) < cols; }
};

/// Adds v over the threads of a row; all of them get the sums.
template <int kCount> __device__ __forceinline__ void rowSum(float (&v)[kCount], bool warpRows) {
  if (warpRows) {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      v[k] = warpSum(v[k]);
  } else {
    blockSum(v);
  }
}

/// Returns null, or the reason why rows do not fit into registers.
inline const char *checkRowLength(int64_t cols) {
  static_assert(kRowColsMax == cudaLimit(CudaLimit::NormColumns).most);
  return cudaRefusal(CudaLimit::NormColumns, cols);
}

} // namespace shardc::kernels::cuda
