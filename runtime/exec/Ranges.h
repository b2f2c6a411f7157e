// The parameter table intersected with what a rank holds of a block: what kernels that work on
// shards get, and what tells valid elements from padding.
#pragma once

#include <span>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/base/Reduction.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Part of one parameter inside a piece of a block.
struct ParamPart {
  uint32_t param;      ///< index in Plan::params
  int64_t begin, end;  ///< elements of the piece
  int64_t globalBegin; ///< element of the parameter at `begin`
};

/// First element of the block that a piece with `numel` elements begins with on the rank with this
/// coordinate: a shard's own slot, or 0 for a whole block. -1 if a piece of this size is neither.
int64_t pieceBegin(const plan::Block &block, int64_t numel, int64_t dp);

/// Parameters in elements [begin, begin + numel) of a block, in order of their place.
std::vector<ParamPart> paramParts(const plan::Plan &plan, int32_t block, int64_t begin,
                                  int64_t numel);

/// The same as kernels get it. `seed` makes the keys of initial values. `countOffsets` is by index
/// in Plan::params (ParamRange::countOffset); empty: all 0.
std::vector<kernels::ParamRange> paramRanges(const plan::Plan &plan, int32_t block, int64_t begin,
                                             int64_t numel, uint64_t seed,
                                             std::span<const int64_t> countOffsets = {});

/// What is no padding in elements [begin, begin + numel) of a block, in order and apart.
std::vector<ElementRange> validElements(const plan::Plan &plan, int32_t block, int64_t begin,
                                        int64_t numel);

/// The block that a result or operand of an op holds, as far as the op says: by its attribute, by
/// its place in sum_squares' list, or by the one block of its unit that has this many elements. -1
/// if none.
int32_t blockOf(const plan::Plan &plan, const plan::Op &op, size_t operandIndex, int64_t numel);

} // namespace shardc::exec
