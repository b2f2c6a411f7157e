// The pipeline stage of each unit.
#pragma once

#include <vector>

#include "compiler/model/PassOrder.h"
#include "compiler/model/Placement.h"
#include "compiler/model/Stages.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// How the units of a model are divided among stages. Without pipeline parallelism, one stage has
/// all.
struct PipelineStages {
  int64_t count = 1;
  int64_t chunks = 1; ///< chunks of layers per stage (virtual pipeline stages)
  /// By unit: the number of its chunk, 0 to count * chunks - 1, in model order.
  std::vector<int32_t> ofUnit;
  model::Placement placement;

  int32_t stageOf(size_t unit) const { return placement.stageOf(ofUnit[unit]); }
};

/// The numbers that determine the order of passes in a step.
model::PipelineShape pipelineShapeOf(const plan::Job &job);
/// The order of passes in a step, as the job says. Pass SplitStages lists an order that needs
/// times.
model::PassOrder passOrderOf(const plan::Job &job);
/// The stage of each chunk, as the job says.
model::Placement placementOf(const plan::Job &job);

/// The split that the job requests. For a balanced split, the times are missing.
model::StageRequest stageRequestOf(const plan::Plan &plan);

/// Adds the times for a balanced split: seconds of each unit for one microbatch, from a body that
/// is ready to be split into stages.
void addSeconds(const plan::Plan &body, model::StageRequest &request);

/// The stages that the job requests. Until pass BalanceStages has written its layout into the job,
/// a balanced split has equal numbers of layers.
PipelineStages readStages(const plan::Plan &plan);

} // namespace shardc::passes
