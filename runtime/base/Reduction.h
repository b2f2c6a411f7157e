// How a GPU backend computes a sum over ranks, and the memory that it needs besides operand and
// result. Sums in rank order, and sums that are wider than the operands or are added to a value,
// use a receive buffer. Compiler and backend share this code, so a channel allocates exactly what
// the plan predicts.
#pragma once

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

/// Valid elements [begin, end) of a result; elements between such ranges are padding.
struct ElementRange {
  int64_t begin = 0, end = 0;
};

struct Reduction {
  bool scatters = false; ///< each member gets its part; otherwise all get the whole
  int64_t members = 1;
  int64_t count = 0; ///< elements of a part if it scatters, otherwise of the whole
  DType inType = DType::F32, outType = DType::F32;
  bool accumulates = false; ///< adds to the old content of the result
  bool anyOrder = false;    ///< the library may choose the order, in the operand's type
  bool sumsSquares = false; ///< also sums the squares of the result; if it scatters, by exchange
};

enum class ReductionWay : uint8_t {
  Library,     ///< by the library, straight into the result
  LibraryThen, ///< by the library into the receive buffer, which is then widened or added
  Exchange,    ///< all versions of the own part, added from the receive buffer in rank order
  Gather,      ///< all whole values go to the receive buffer: a small sum, in one exchange
};

ReductionWay wayOf(const Reduction &reduction);

/// Elements of a whole that each member adds if it does not scatter: as equal as multiples of 16
/// bytes allow, the last ones shorter or empty.
int64_t chunkOf(int64_t count, int64_t members);

/// Number of partial sums (f64) for the squares of this many elements.
int64_t squareSumsOf(int64_t count);

/// Offset of the partial sums of squares in the receive buffer: after all members' versions.
int64_t squareSumsOffset(const Reduction &reduction);

/// Bytes of receive buffer that it needs; 0 in a group of one.
int64_t receiveBufferBytes(const Reduction &reduction);

} // namespace shardc
