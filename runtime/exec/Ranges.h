// Intersects the parameter table with a rank's piece of a block. The result is the parameter ranges
// for kernels that work on shards, and the ranges of valid elements without padding.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/base/Reduction.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// The part of one parameter that lies inside a piece of a block.
struct ParamPiece {
  uint32_t param;      ///< index in Plan::params
  int64_t begin, end;  ///< elements, from the start of the piece
  int64_t globalBegin; ///< element of the parameter at `begin`
};

/// The part of one tensor of a parameter that lies inside a piece of a block: a box, stored row by
/// row.
struct TensorBox {
  uint32_t param;                       ///< index in Plan::params
  int64_t number;                       ///< index of the tensor in its stack; 0 without a stack
  int64_t begin, end;                   ///< elements, from the start of the piece
  uint8_t rank;                         ///< number of the tensor's dimensions
  std::array<int64_t, 4> offset, shape; ///< of the box within the tensor
  int64_t globalBegin;                  ///< element of the tensor at `begin`
  int64_t columns, stride;              ///< see kernels::ParamRange
};

/// The element of the block at which a piece of `numel` elements begins on the rank with these
/// indices. For a shard, it is the rank's own slot, and for a whole block 0. -1 if no piece has
/// this size.
int64_t pieceBegin(const plan::Block &block, int64_t numel, const GroupIndices &indices);

/// The parameters in elements [begin, begin + numel) of a block, sorted by offset.
std::vector<ParamPiece> paramPieces(const plan::Plan &plan, int32_t block, int64_t begin,
                                    int64_t numel);

/// The boxes of a part of a parameter on the rank with these indices, in order. If the parameter is
/// split or stacked, the part must begin and end between rows.
std::vector<TensorBox> tensorBoxes(const plan::Plan &plan, const ParamPiece &part,
                                   const GroupIndices &indices);

/// Whether the rank with these indices counts the parameter in norms. Of several copies, one rank
/// counts it.
bool isCounted(const plan::Param &param, const GroupIndices &indices);

/// Facts about parameters that kernels need and plans lack.
struct RangeContext {
  uint64_t seed = 0; ///< seed of the initial values
  /// By index in Plan::params: ParamRange::countOffset; empty: all 0.
  std::span<const int64_t> countOffsets = {};
  bool isNorm = false; ///< leaves out parameters that the rank does not count
};

/// The tensors in elements [begin, begin + numel) of a block, in the form for kernels.
std::vector<kernels::ParamRange> paramRanges(const plan::Plan &plan, int32_t block, int64_t begin,
                                             int64_t numel, const GroupIndices &indices,
                                             const RangeContext &context);

/// Ranges of elements [begin, begin + numel) of a block that the rank counts in norms: without
/// padding, in order and disjoint.
std::vector<ElementRange> countedElements(const plan::Plan &plan, int32_t block, int64_t begin,
                                          int64_t numel, const GroupIndices &indices);

/// The block of which an operand or result is a part, as far as the op determines it: by its
/// attribute, by its position in the list of blocks, or, if the op keeps blocks, as the only block
/// of its unit with this number of elements. -1 if it is not determined.
int32_t blockOf(const plan::Plan &plan, const plan::Op &op, size_t operandIndex, int64_t numel);

} // namespace shardc::exec
