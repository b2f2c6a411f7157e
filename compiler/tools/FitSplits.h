// Compares splits of the same ranks over tensor, context, pipeline, expert and data parallelism by
// compiling the recipe for each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compiler/tools/Session.h"

namespace shardc::tools {

/// A split of all ranks, with the memory and time of its plan.
struct Split {
  int64_t tensor = 1, context = 1, pipeline = 1, data = 1;
  int64_t expert = 1;            ///< expert-parallel ranks
  std::vector<std::string> sets; ///< the changed settings, as `--set` takes them
  int64_t bytes = 0;             ///< device memory by deviceBytesOf()
  double seconds = 0;            ///< predicted step time; 0 on the host
};

/// The compiled splits, and the number that was not compiled for lack of time.
struct Splits {
  std::vector<Split> all;
  size_t numUntried = 0;
};

/// Returns the recipe's own split, then the others that can be executed: the fastest first or, on
/// the host, the smallest. Tensor and context parallelism stay within a node. All other settings
/// are the recipe's; sequence parallelism is enabled with tensor parallelism. Splits that differ
/// only in expert parallelism are tried first, those that also differ otherwise last. `goesOn` is
/// called before each split with the number of splits tried so far and in total; false ends the
/// search.
Splits trySplits(const config::Config &config, const plan::Plan &plan, const CommonOptions &common,
                 const std::function<bool(size_t tried, size_t all)> &goesOn);

} // namespace shardc::tools
