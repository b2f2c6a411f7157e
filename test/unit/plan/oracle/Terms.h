// Names for kinds of ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

inline bool isAlias(const Op &op) { return op.kind == OpKind::View || op.kind == OpKind::Pack; }

inline int32_t blockNamed(const Op &op) { return static_cast<int32_t>(op.getInt(AttrKey::block)); }

/// The begin and the number of elements of each part of a pack. The parts are the block's
/// parameters; without a block, they are the operands, one after the other, with these sizes.
inline std::vector<std::pair<int64_t, int64_t>> partsOfPack(const Plan &plan, const Op &pack,
                                                            const std::vector<int64_t> &sizes) {
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const Param &param : plan.params)
    if (blockNamed(pack) >= 0 && param.block == blockNamed(pack))
      parts.emplace_back(param.offset, param.type.numel());
  std::ranges::sort(parts);
  int64_t end = 0;
  for (size_t i = 0; i < sizes.size() && blockNamed(pack) < 0; end += sizes[i++])
    parts.emplace_back(end, sizes[i]);
  return parts;
}

} // namespace shardc::plan::oracle
