// The parameter ranges of a shard, as a call passes them to a kernel.
#pragma once

#include <numeric>
#include <span>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// The ranges of operand `index` of a list. Without `rangesOf`, all ranges, which belong to one
/// shard.
inline std::span<const ParamRange> rangesOfShard(const Call &call, int64_t index) {
  if (!call.rangesOf)
    return {call.ranges, static_cast<size_t>(call.rangesCount)};
  int64_t begin = call.rangesOf[index], end = call.rangesOf[index + 1];
  return {call.ranges + begin, static_cast<size_t>(end - begin)};
}

/// The least common multiple of the copies of a list. 0 if a number of copies is not positive, or
/// if the multiple exceeds 2^40. A sum of squares over the list multiplies each operand's squares
/// by multiple / copies and divides the total by the multiple once. If all operands have the same
/// number of copies, this is their sum divided by that number.
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
/// The factor of the squares of operand `index` in a sum that is divided by `multiple`.
inline int64_t timesOf(const Call &call, int64_t index, int64_t multiple) {
  return call.copies == nullptr ? multiple : multiple / call.copies[index];
}

} // namespace shardc::kernels::host
