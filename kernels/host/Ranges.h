// The parameter table's rows of a shard, in the form in which a call passes them to a kernel.
#pragma once

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

} // namespace shardc::kernels::host
