// Weights that ranks keep and gather in 8 bits: their type in the parameter table says so. Each has
// one scale, and all scales lie in one value.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

inline bool isKeptIn8Bits(const Param &param) { return param.type.dtype == DType::F8E4M3; }

/// For each block whether its parameters are.
inline std::vector<uint8_t> blocksIn8Bits(const Plan &plan) {
  std::vector<uint8_t> blocks(plan.blocks.size());
  for (const Param &param : plan.params)
    if (isKeptIn8Bits(param))
      blocks[static_cast<size_t>(param.block)] = 1;
  return blocks;
}

/// Elements from one scale to the next: views are aligned to 16 bytes.
inline constexpr int64_t kScaleStride = 4;

/// How many there are.
inline int64_t countWeightScales(const Plan &plan) {
  return std::ranges::count_if(plan.params, isKeptIn8Bits);
}

/// The position of a parameter's scale, which is its own among those of 8 bits; 0 for others.
inline int64_t numberOfScale(const Plan &plan, size_t param) {
  if (!isKeptIn8Bits(plan.params[param]))
    return 0;
  auto first = plan.params.begin();
  return std::count_if(first, first + static_cast<std::ptrdiff_t>(param), isKeptIn8Bits);
}

} // namespace shardc::plan
