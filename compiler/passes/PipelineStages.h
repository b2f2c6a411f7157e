// Which stage of a pipeline has which units.
#pragma once

#include <vector>

#include "compiler/model/Stages.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

struct PipelineStages {
  int64_t count = 1;
  int64_t chunks = 1; ///< of layers on each of them
  /// By unit: 0 to count * chunks - 1, in the order of the model. Chunk c of stage s is the one
  /// with number c * count + s.
  std::vector<int32_t> ofUnit;
};

/// What the job asks for; of a balanced division without the seconds.
model::StageRequest stageRequestOf(const plan::Plan &plan);

/// Adds the seconds of a balanced division: those of one microbatch, by the ops of a body that is
/// ready to be cut into stages.
void addSeconds(const plan::Plan &body, model::StageRequest &request);

/// As the job asks for it. A balanced division is that of equal layers until the pass
/// balance-stages has written its layout into the job.
PipelineStages readStages(const plan::Plan &plan);

} // namespace shardc::passes
