#include "Splits.h"

#include <algorithm>

namespace shardc::plan::oracle {

bool Splits::areSame(const Param &param, int64_t a, int64_t b) const {
  return std::ranges::all_of(param.splits, [&](const Split &split) {
    return positions_.in(split.group, a) == positions_.in(split.group, b);
  });
}

bool Splits::areSame(int32_t block, int64_t a, int64_t b) const {
  return std::ranges::all_of(plan_.params, [&](const Param &param) {
    return param.block != block || areSame(param, a, b);
  });
}

} // namespace shardc::plan::oracle
