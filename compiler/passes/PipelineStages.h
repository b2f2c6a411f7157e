// The pipeline stage of each unit.
#pragma once

#include <vector>

#include "compiler/model/Stages.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

struct PipelineStages {
  int64_t count = 1;
  int64_t chunks = 1; ///< chunks of layers per stage (virtual pipeline stages)
  /// By unit: the number of its chunk, 0 to count * chunks - 1, in model order. Chunk c of stage s
  /// has the number c * count + s.
  std::vector<int32_t> ofUnit;
};

/// The split that the job requests; for a balanced split, without times.
model::StageRequest stageRequestOf(const plan::Plan &plan);

/// Adds the times of a balanced split: seconds of one microbatch, from the ops of a body that is
/// ready to be split into stages.
void addSeconds(const plan::Plan &body, model::StageRequest &request);

/// The split that the job requests. A balanced split has equal numbers of layers until pass
/// balance-stages has written its layout into the job.
PipelineStages readStages(const plan::Plan &plan);

} // namespace shardc::passes
