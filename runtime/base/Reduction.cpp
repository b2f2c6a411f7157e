#include "runtime/base/Reduction.h"

namespace shardc {
namespace {

/// Below this many elements of a whole everything is sent to everybody.
constexpr int64_t kSmall = 4096;

} // namespace

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

int64_t chunkOf(int64_t count, int64_t members) {
  return ((count + members - 1) / members + 7) / 8 * 8;
}

int64_t landingBytes(const Reduction &r) {
  if (r.members == 1)
    return 0;
  switch (wayOf(r)) {
  case ReductionWay::Library:
    return 0;
  case ReductionWay::LibraryThen:
    return r.count * dtypeBytes(r.inType);
  case ReductionWay::Exchange:
    return r.members * (r.scatters ? r.count : chunkOf(r.count, r.members)) * dtypeBytes(r.inType);
  case ReductionWay::Gather:
    return r.members * r.count * dtypeBytes(r.inType);
  }
  return 0;
}

} // namespace shardc
