// Describes, from the plan, the ops that the labels of spans name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/plan/Plan.h"

namespace shardc::trace {

struct TracedOp {
  std::string_view op;     ///< name in the op table
  bool isTransfer = false; ///< a collective
  /// Equal for ops that do the same on other values, such as those of other layers.
  uint32_t likes = 0;
};

/// The ops by label.
using TracedOps = std::unordered_map<std::string, TracedOp>;

TracedOps tracedOps(const plan::Plan &plan);

} // namespace shardc::trace
