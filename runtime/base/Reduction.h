// How a backend on GPUs forms a sum over ranks, and the memory that it takes beside operand and
// result: sums in rank order, and sums that are wider than what travels or are added to something,
// are formed from a landing buffer. Compiler and backend both ask here, so what a plan is predicted
// to take is what a channel allocates.
#pragma once

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

/// Elements [begin, end) of a result that hold something; what lies between such ranges is padding.
struct ElementRange {
  int64_t begin = 0, end = 0;
};

struct Reduction {
  bool scatters = false; ///< each member gets its part; else all get the whole
  int64_t members = 1;
  int64_t count = 0; ///< elements of a part where it scatters, else of the whole
  DType inType = DType::F32, outType = DType::F32;
  bool accumulates = false; ///< adds to what is in the result
  bool anyOrder = false;    ///< the library may add in its own order, in the wire's type
  bool sumsSquares = false; ///< of the result as well; where it scatters, by exchange
};

enum class ReductionWay : uint8_t {
  Library,     ///< by the library, straight into the result
  LibraryThen, ///< by the library into the landing buffer, which is then widened or added
  Exchange,    ///< everybody's version of the own part into the landing buffer, added in rank order
  Gather,      ///< everybody's whole into the landing buffer: a small sum, in one exchange
};

ReductionWay wayOf(const Reduction &reduction);

/// Elements of a whole that each member adds up where it does not scatter: as even as multiples of
/// 16 bytes allow, the last ones shorter or empty.
int64_t chunkOf(int64_t count, int64_t members);

/// Partial sums, f64, that the squares of so many elements are added up in.
int64_t squareSumsOf(int64_t count);

/// Where the partial sums of squares lie in the landing buffer: behind everybody's version.
int64_t squareSumsOffset(const Reduction &reduction);

/// Bytes of landing buffer that it needs; 0 in a group of one.
int64_t landingBytes(const Reduction &reduction);

} // namespace shardc
