// Mirrored slices of sequences: of n ranks, rank i has chunks i and 2n-1-i of the 2n equal chunks
// of each sequence, so that causal attention is equal work for all ranks. Shared by attention_part
// on host and GPU.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// The slices of a call of attention_part or its gradient. If `count` is 0, operands give
/// positions.
struct Slices {
  int64_t count, index; ///< number of ranks with slices, and index of this one
  int64_t rows;         ///< rows of a slice
  int64_t by;           ///< keys come from rank index - by, unless the call has all keys

  /// The slices of q[B,S,N,D], where S is the number of rows of a slice.
  Slices(const Call &call, const Tensor &q)
      : count(call.attrs.slices), index(count > 0 ? call.index / headParts(call) : 0),
        rows(q.shape[1]), by(call.attrs.by) {}

  /// Number of parts into which heads are divided. Ranks of a group are numbered by heads first,
  /// then by slices.
  static int64_t headParts(const Call &call) {
    return call.attrs.slices > 0 ? call.groupSize / call.attrs.slices : call.groupSize;
  }
  static int64_t headPart(const Call &call) { return call.index % headParts(call); }

  /// The rank from which the keys come.
  int64_t owner() const { return (index - by + count) % count; }
  int64_t positionOf(int64_t owner, int64_t row) const {
    if (count == 1)
      return row;
    int64_t chunk = rows / 2;
    return row < chunk ? owner * chunk + row : (2 * count - 2 - owner) * chunk + row;
  }
};

} // namespace shardc::kernels::host
