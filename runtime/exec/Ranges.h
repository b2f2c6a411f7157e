// Intersects the parameter table with a rank's piece of a block: the ranges for kernels that work
// on shards, and the distinction of valid elements and padding.
#pragma once

#include <span>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/base/Reduction.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Part of one parameter inside a piece of a block.
struct ParamPart {
  uint32_t param;      ///< index in Plan::params
  int64_t begin, end;  ///< elements of the piece
  int64_t globalBegin; ///< element of the parameter at `begin`
};

/// The block element at which a piece of `numel` elements begins on the rank with these indices:
/// the own slot of a part of the block, or 0 for a whole block. -1 if a piece of this size is
/// neither.
int64_t pieceBegin(const plan::Block &block, int64_t numel, const GroupIndices &indices);

/// Parameters in elements [begin, begin + numel) of a block, in order of offset.
std::vector<ParamPart> paramParts(const plan::Plan &plan, int32_t block, int64_t begin,
                                  int64_t numel);

/// The same as kernels get it. `seed` makes the keys of initial values. `countOffsets` is by index
/// in Plan::params (ParamRange::countOffset); empty: all 0.
std::vector<kernels::ParamRange> paramRanges(const plan::Plan &plan, int32_t block, int64_t begin,
                                             int64_t numel, uint64_t seed,
                                             std::span<const int64_t> countOffsets = {});

/// Ranges of elements [begin, begin + numel) of a block without padding, in order and disjoint.
std::vector<ElementRange> validElements(const plan::Plan &plan, int32_t block, int64_t begin,
                                        int64_t numel);

/// The block of a result or operand of an op, as far as the op determines it: by its attribute, by
/// its position in sum_squares' list, or, if the op keeps blocks, as the only block of its unit
/// with this number of elements. -1 if none.
int32_t blockOf(const plan::Plan &plan, const plan::Op &op, size_t operandIndex, int64_t numel);

} // namespace shardc::exec
