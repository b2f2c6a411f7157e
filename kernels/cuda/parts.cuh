// Rows, or columns, of a joined layer in parts that may have adapters, as kernels/host/Parts.h has
// them.
#pragma once

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {

/// The part that a row belongs to: rows are groups of units, with those of the first part first.
struct PartsOfRows {
  int64_t unitRows, units, more; ///< `more`: units of the first part, minus one
  uint64_t kept;

  /// The index of the row's part among the parts that have columns; -1 if the part has none.
  __device__ __forceinline__ int64_t placeOf(int64_t row) const {
    int64_t unit = row / unitRows % units - more;
    uint64_t bit = uint64_t{1} << (unit < 0 ? 0 : unit);
    return (kept & bit) != 0 ? __popcll(kept & (bit - 1)) : -1;
  }
};

/// `rows`: all rows of the joined layer that the op has.
inline PartsOfRows partsOf(const Attrs &attrs, int64_t rows) {
  return {rows / (attrs.num_groups * attrs.units), attrs.units, attrs.first_units - 1,
          static_cast<uint64_t>(attrs.kept)};
}

} // namespace shardc::kernels::cuda
