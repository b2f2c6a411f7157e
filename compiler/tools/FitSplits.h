// Compares how the same ranks can be split among tensor, context, pipeline, expert and data
// parallelism, by compiling the recipe for each split.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compiler/tools/Session.h"

namespace shardc::tools {

/// A split of all ranks, and what a rank takes with it.
struct Split {
  int64_t tensor = 1, context = 1, pipeline = 1, data = 1;
  int64_t expert = 1;            ///< ranks among which the experts are divided
  std::vector<std::string> sets; ///< what the recipe says otherwise, as `--set` takes it
  int64_t bytes = 0;             ///< of the device, as deviceBytesOf says
  double seconds = 0;            ///< of a step, predicted; 0 on the host
};

/// The splits that were compiled, and how many were not for lack of time.
struct Splits {
  std::vector<Split> all;
  size_t numUntried = 0;
};

/// The recipe's own split first, then those that can be executed, the fastest first; on the host,
/// those that need least memory. Tensor and context parallelism stay inside a node. Every other
/// setting is the recipe's; sequence parallelism comes with tensor parallelism. Splits that differ
/// in expert parallelism alone are tried first, those that differ in it and otherwise last.
/// `goesOn` is asked before each split with the number of splits that were tried, and of all.
Splits trySplits(const config::Config &config, const plan::Plan &plan, const CommonOptions &common,
                 const std::function<bool(size_t tried, size_t all)> &goesOn);

} // namespace shardc::tools
