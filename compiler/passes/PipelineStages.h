// Which stage of a pipeline has which units.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

struct PipelineStages {
  int64_t count = 1;
  int64_t chunks = 1; ///< of layers on each of them
  /// By unit: 0 to count * chunks - 1, in the order of the model. Chunk c of stage s is the one
  /// with number c * count + s.
  std::vector<int32_t> ofUnit;
};

/// As the job asks for it.
PipelineStages readStages(const plan::Plan &plan);

} // namespace shardc::passes
