// Weights that ranks keep and gather in 8 bits: their type in the parameter table says so. Each
// tensor, as checkpoints have it, has one scale, and all scales lie in one value.
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

/// How many belong to the first so many parameters.
inline int64_t countWeightScales(const Plan &plan, size_t params) {
  int64_t count = 0;
  for (size_t p = 0; p < params; ++p)
    count += isKeptIn8Bits(plan.params[p]) ? plan.params[p].tensorCount() : 0;
  return count;
}
inline int64_t countWeightScales(const Plan &plan) {
  return countWeightScales(plan, plan.params.size());
}

/// The position of a parameter's scale, or of the first of a stack's; 0 of what is not of 8 bits.
inline int64_t numberOfScale(const Plan &plan, size_t param) {
  return isKeptIn8Bits(plan.params[param]) ? countWeightScales(plan, param) : 0;
}

} // namespace shardc::plan
