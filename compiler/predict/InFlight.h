// What a pipeline stage keeps of microbatches between their passes.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::predict {

/// A run of a body in a step, and what its role keeps while it runs.
struct KeptRun {
  uint32_t segment;
  int64_t microbatch;
  int64_t bytes = 0;  ///< of values that runs leave for later runs of the same microbatch
  int64_t passes = 0; ///< forward passes whose values wait for a backward pass
};

/// The runs of bodies in a step, in order.
std::vector<KeptRun> keptInStep(const plan::Role &role);

} // namespace shardc::predict
