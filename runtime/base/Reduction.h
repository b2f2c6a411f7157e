// How a GPU backend computes a sum over ranks, and the memory that it needs in addition to operand
// and result. A receive buffer is needed for sums in rank order, for sums wider than their
// operands, and for sums that are added to a value. Compiler and backend share this code, so a
// channel allocates exactly what the plan predicts.
#pragma once

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

/// A range [begin, end) of valid elements of a result. Elements between such ranges are padding.
struct ElementRange {
  int64_t begin = 0, end = 0;
};

/// One sum over ranks, in elements and types.
struct Reduction {
  bool scatters = false; ///< each member receives its part; otherwise all receive the whole
  int64_t members = 1;
  int64_t count = 0; ///< elements of a part if `scatters`, otherwise of the whole
  DType inType = DType::F32, outType = DType::F32;
  bool accumulates = false; ///< adds to the old content of the result
  bool anyOrder = false;    ///< the library may add in any order and in the operand's type
  bool sumsSquares = false; ///< also computes the sum of the result's squares
};

/// The ways of computing it.
enum class ReductionWay : uint8_t {
  Library,     ///< the library reduces directly into the result
  LibraryThen, ///< the library reduces into the receive buffer; a kernel widens or adds
  Exchange,    ///< members exchange parts, and each adds the versions of its own in rank order
  Gather,      ///< all-gathers whole values into the receive buffer: for small sums
};

/// All members choose the same way, because it depends only on the reduction.
ReductionWay wayOf(const Reduction &reduction);

/// Elements of the whole that each member adds, unless the reduction scatters. Chunks are multiples
/// of 16 bytes, as equal as possible; the last ones may be shorter or empty.
int64_t chunkOf(int64_t count, int64_t members);

/// Number of partial sums (f64) that compute the sum of squares of this many elements.
int64_t squareSumsOf(int64_t count);

/// Offset of the partial sums of squares in the receive buffer, which begins with all members'
/// versions.
int64_t squareSumsOffset(const Reduction &reduction);

/// Bytes of receive buffer that the reduction needs; 0 in a group of one member.
int64_t receiveBufferBytes(const Reduction &reduction);

} // namespace shardc
