// The parameter table's rows of a shard, in the form in which a call passes them to a kernel.
#pragma once

#include <numeric>
#include <span>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Ranges of operand `index` of a list; without `rangesOf`, all ranges, of the single shard.
inline std::span<const ParamRange> rangesOfShard(const Call &call, int64_t index) {
  if (!call.rangesOf)
    return {call.ranges, static_cast<size_t>(call.rangesCount)};
  int64_t begin = call.rangesOf[index], end = call.rangesOf[index + 1];
  return {call.ranges + begin, static_cast<size_t>(end - begin)};
}

/// The least common multiple of the copies of a list; 0 if one of them is not positive, or if it is
/// above 2^40. Squares are added as often as it holds the copies of theirs, and their sum is
/// divided by it once: where all have the same copies, that is their sum divided by these.
inline int64_t copiesOf(const Call &call) {
  int64_t multiple = 1;
  for (int64_t i = 0; call.copies != nullptr && i < call.listCount; ++i) {
    if (call.copies[i] <= 0)
      return 0;
    int64_t factor = call.copies[i] / std::gcd(multiple, call.copies[i]);
    if (factor > (int64_t{1} << 40) / multiple)
      return 0;
    multiple *= factor;
  }
  return multiple;
}
/// How often the squares of operand `index` count in a sum that is divided by `multiple`.
inline int64_t timesOf(const Call &call, int64_t index, int64_t multiple) {
  return call.copies == nullptr ? multiple : multiple / call.copies[index];
}

} // namespace shardc::kernels::host
