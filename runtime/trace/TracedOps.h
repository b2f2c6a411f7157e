// The description of an op in a span's label, as the plan has it.
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
  /// The same number for ops that do the same on other values: those of other layers.
  uint32_t likes = 0;
};

/// By label.
using TracedOps = std::unordered_map<std::string, TracedOp>;

TracedOps tracedOps(const plan::Plan &plan);

} // namespace shardc::trace
