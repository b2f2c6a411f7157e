// Groups of rows on the device, like kernels/host/RowGroups.h: which rows of equal slots are valid.
// Kernels read the counts from device memory, so the host never waits for them.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// The counts of a call's groups, i32[slots, groups], with `slotRows` rows in each slot.
struct Counts {
  const int32_t *counts;
  int64_t slots, groups, slotRows;

  /// Rows of a group if `used` rows of its slot precede it: its count, limited by the slot's
  /// capacity.
  __device__ int64_t rowsOf(int64_t slot, int64_t group, int64_t used) const {
    int64_t rows = counts[slot * groups + group];
    return rows < 0 ? 0 : rows < slotRows - used ? rows : slotRows - used;
  }
  /// The group of a row; -1 if the row is not valid.
  __device__ int32_t groupOf(int64_t row) const {
    int64_t slot = row / slotRows, in = row % slotRows, used = 0;
    for (int64_t group = 0; group < groups; ++group) {
      used += rowsOf(slot, group, used);
      if (in < used)
        return static_cast<int32_t>(group);
    }
    return -1;
  }
  /// Number of valid rows of a slot. All threads of the block must call it, in whole warps.
  __device__ int64_t rowsOfSlot(int64_t slot) const {
    int64_t rows[1] = {};
    for (int64_t group = threadIdx.x; group < groups; group += blockDim.x)
      rows[0] += max(counts[slot * groups + group], 0);
    blockSum(rows);
    return min(rows[0], slotRows);
  }
};

/// `rows`: the rows of all slots together.
inline Counts countsOf(const Tensor &counts, int64_t rows) {
  return {static_cast<const int32_t *>(counts.data), counts.shape[0], counts.shape[1],
          rows / counts.shape[0]};
}

/// Grid of blocks with `rowsOfBlock` rows each: x along a slot, y over slots.
inline dim3 gridOfSlots(const Counts &counts, unsigned rowsOfBlock) {
  return {static_cast<unsigned>(ceilDiv(counts.slotRows, rowsOfBlock)),
          static_cast<unsigned>(counts.slots)};
}

} // namespace shardc::kernels::cuda
