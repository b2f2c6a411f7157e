// Scales of weights that are stored and gathered in 8 bits, as the types in the parameter table
// say. Each tensor of a checkpoint has one scale. One value holds all scales, in the order of the
// parameter table; a stack has consecutive ones.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Whether ranks store and gather the parameter as 8-bit floating-point numbers.
inline bool isKeptIn8Bits(const Param &param) { return param.type.dtype == DType::F8E4M3; }

/// For each block, whether its parameters have 8 bits.
inline std::vector<uint8_t> blocksIn8Bits(const Plan &plan) {
  std::vector<uint8_t> blocks(plan.blocks.size());
  for (const Param &param : plan.params)
    if (isKeptIn8Bits(param))
      blocks[static_cast<size_t>(param.block)] = 1;
  return blocks;
}

/// Distance between scales in elements: views are aligned to 16 bytes.
inline constexpr int64_t kScaleStride = 4;

/// Number of scales of parameters 0 to params - 1.
inline int64_t countWeightScales(const Plan &plan, size_t params) {
  int64_t count = 0;
  for (size_t p = 0; p < params; ++p)
    count += isKeptIn8Bits(plan.params[p]) ? plan.params[p].tensorCount() : 0;
  return count;
}
/// Number of scales of all parameters.
inline int64_t countWeightScales(const Plan &plan) {
  return countWeightScales(plan, plan.params.size());
}

/// Index of a parameter's scale, or of the first scale of a stack; 0 for parameters that are not in
/// 8 bits.
inline int64_t numberOfScale(const Plan &plan, size_t param) {
  return isKeptIn8Bits(plan.params[param]) ? countWeightScales(plan, param) : 0;
}

} // namespace shardc::plan
