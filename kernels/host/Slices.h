// Slices of sequences that mirror each other: of n ranks, the one with index i has the i-th and the
// (2n-1-i)-th of 2n equal chunks of each sequence, so that causal attention is as much work for
// each. Shared by attention_part on host and GPU.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// The slices of a call of attention_part or its gradient; `count` is 0 if positions tell.
struct Slices {
  int64_t count, index; ///< of the ranks with slices
  int64_t rows;         ///< of a slice
  int64_t by;           ///< keys are those of the rank with index - by, if not all by position

  /// The slices of q[B,S,N,D], where S is the number of rows of a slice.
  Slices(const Call &call, const Tensor &q)
      : count(call.attrs.slices), index(count > 0 ? call.index / headParts(call) : 0),
        rows(q.shape[1]), by(call.attrs.by) {}

  /// The parts that heads are in: ranks of a group count heads, then slices.
  static int64_t headParts(const Call &call) {
    return call.attrs.slices > 0 ? call.groupSize / call.attrs.slices : call.groupSize;
  }
  static int64_t headPart(const Call &call) { return call.index % headParts(call); }

  /// The rank whose keys they are.
  int64_t owner() const { return (index - by + count) % count; }
  int64_t positionOf(int64_t owner, int64_t row) const {
    if (count == 1)
      return row;
    int64_t chunk = rows / 2;
    return row < chunk ? owner * chunk + row : (2 * count - 2 - owner) * chunk + row;
  }
};

} // namespace shardc::kernels::host
