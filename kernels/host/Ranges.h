// The parameter table's rows of a shard, as a call hands them to a kernel.
#pragma once

#include <span>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Ranges of operand `index` of a list; of the one shard (all that there are) without `rangesOf`.
inline std::span<const ParamRange> rangesOfShard(const Call &call, int64_t index) {
  if (!call.rangesOf)
    return {call.ranges, static_cast<size_t>(call.rangesCount)};
  int64_t begin = call.rangesOf[index], end = call.rangesOf[index + 1];
  return {call.ranges + begin, static_cast<size_t>(end - begin)};
}

} // namespace shardc::kernels::host
