#include "runtime/base/Reduction.h"

#include <algorithm>

namespace shardc {
namespace {

/// With fewer elements than this, every member sends its whole value to every other member.
constexpr int64_t kSmall = 4096;

/// Each thread block computes one partial sum of squares, over one to eight tiles. There are enough
/// blocks that all end at about the same time, and few enough that adding their sums is cheap.
constexpr int64_t kSquareTile = 2048;
constexpr int64_t kSquareBlocks = 2048;
constexpr int64_t kSquareTilesMax = 8;

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t versionsBytes(const Reduction &r) {
  return r.members * (r.scatters ? r.count : chunkOf(r.count, r.members)) * dtypeBytes(r.inType);
}

} // namespace

/// Small reductions are gathered, since latency dominates. The library's sums have no fixed order,
/// so they are used only where any order is allowed.
ReductionWay wayOf(const Reduction &r) {
  bool sameType = r.inType == r.outType;
  if (!r.scatters && r.count <= kSmall)
    return ReductionWay::Gather;
  if (!r.anyOrder || r.members == 1)
    return ReductionWay::Exchange;
  if (!r.scatters)
    return sameType ? ReductionWay::Library : ReductionWay::Exchange;
  if (r.inType == DType::F64)
    return ReductionWay::Exchange;
  return sameType && !r.accumulates ? ReductionWay::Library : ReductionWay::LibraryThen;
}

int64_t chunkOf(int64_t count, int64_t members) { return ceilDiv(ceilDiv(count, members), 8) * 8; }

int64_t squareSumsOf(int64_t count) {
  int64_t tiles = ceilDiv(count, kSquareTile);
  return ceilDiv(tiles, std::clamp<int64_t>(tiles / kSquareBlocks, 1, kSquareTilesMax));
}

int64_t squareSumsOffset(const Reduction &r) { return ceilDiv(versionsBytes(r), 16) * 16; }

int64_t receiveBufferBytes(const Reduction &r) {
  if (r.members == 1)
    return 0;
  switch (wayOf(r)) {
  case ReductionWay::Library:
    return 0;
  case ReductionWay::LibraryThen:
    return r.count * dtypeBytes(r.inType);
  case ReductionWay::Exchange:
    return r.sumsSquares ? squareSumsOffset(r) + squareSumsOf(r.count) * dtypeBytes(DType::F64)
                         : versionsBytes(r);
  case ReductionWay::Gather:
    return r.members * r.count * dtypeBytes(r.inType);
  }
  return 0;
}

} // namespace shardc
