// Intersects the parameter table with a rank's piece of a block: the ranges for kernels that work
// on shards, and the distinction of valid elements and padding.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/base/Reduction.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Part of one parameter inside a piece of a block.
struct ParamPiece {
  uint32_t param;      ///< index in Plan::params
  int64_t begin, end;  ///< elements of the piece
  int64_t globalBegin; ///< element of the parameter at `begin`
};

/// Part of one tensor of a parameter inside a piece of a block: a box, row by row.
struct TensorBox {
  uint32_t param;                       ///< index in Plan::params
  int64_t number;                       ///< of the tensor in its stack; 0 if there is none
  int64_t begin, end;                   ///< elements of the piece
  uint8_t rank;                         ///< dimensions of the tensor
  std::array<int64_t, 4> offset, shape; ///< of the box in the tensor
  int64_t globalBegin;                  ///< element of the tensor at `begin`
  int64_t columns, stride;              ///< as in kernels::ParamRange
};

/// The block element at which a piece of `numel` elements begins on the rank with these indices:
/// the own slot of a part of the block, or 0 for a whole block. -1 if a piece of this size is
/// neither.
int64_t pieceBegin(const plan::Block &block, int64_t numel, const GroupIndices &indices);

/// Parameters in elements [begin, begin + numel) of a block, in order of offset.
std::vector<ParamPiece> paramPieces(const plan::Plan &plan, int32_t block, int64_t begin,
                                    int64_t numel);

/// The boxes that a part of a parameter consists of on the rank with these indices, in order. The
/// part begins and ends between rows where the parameter is split or stacked.
std::vector<TensorBox> tensorBoxes(const plan::Plan &plan, const ParamPiece &part,
                                   const GroupIndices &indices);

/// Whether the rank with these indices counts the parameter in norms: of copies one rank does.
bool isCounted(const plan::Param &param, const GroupIndices &indices);

/// Information on parameters that kernels need and the plan lacks.
struct RangeContext {
  uint64_t seed = 0; ///< makes the keys of initial values
  /// Offsets of counts by index in Plan::params (ParamRange::countOffset); empty: all 0.
  std::span<const int64_t> countOffsets = {};
  bool isNorm = false; ///< leaves out parameters that the rank does not count
};

/// Tensors in elements [begin, begin + numel) of a block as kernels get them.
std::vector<kernels::ParamRange> paramRanges(const plan::Plan &plan, int32_t block, int64_t begin,
                                             int64_t numel, const GroupIndices &indices,
                                             const RangeContext &context);

/// Ranges of elements [begin, begin + numel) of a block that the rank counts in norms: without
/// padding, in order and disjoint.
std::vector<ElementRange> countedElements(const plan::Plan &plan, int32_t block, int64_t begin,
                                          int64_t numel, const GroupIndices &indices);

/// The block of a result or operand of an op, as far as the op determines it: by its attribute, by
/// its position in the list of blocks, or, if the op keeps blocks, as the only block of its unit
/// with this number of elements. -1 if none.
int32_t blockOf(const plan::Plan &plan, const plan::Op &op, size_t operandIndex, int64_t numel);

} // namespace shardc::exec
