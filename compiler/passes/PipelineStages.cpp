// Reads the layout of stages from the job, and assigns each unit to a stage.
#include "compiler/passes/PipelineStages.h"

#include <algorithm>

#include "compiler/model/ScheduleFile.h"
#include "runtime/base/Status.h"

namespace shardc::passes {

model::StageRequest stageRequestOf(const plan::Plan &plan) {
  const plan::Job::Model &model = plan.job.model;
  model::StageRequest request;
  request.layers = std::ranges::count(plan.units, plan::UnitKind::Layer, &plan::Unit::kind);
  request.stages = model.pipelineModelParallelSize;
  request.chunks = model.virtualPipelineModelParallelSize;
  request.first = model.numLayersInFirstPipelineStage;
  request.last = model.numLayersInLastPipelineStage;
  request.countsEmbedding = model.accountForEmbeddingInPipelineSplit;
  request.countsLoss = model.accountForLossInPipelineSplit;
  request.isBalanced = model.pipelineSplit == plan::Job::PipelineSplit::Balanced;
  request.layout = model.pipelineModelParallelLayout;
  request.placement = placementOf(plan.job);
  return request;
}

model::Placement placementOf(const plan::Job &job) {
  if (!job.derived.passOrder.empty())
    return passOrderOf(job).placement;
  return model::placementFor(job.model.pipelineSchedule, job.model.pipelineModelParallelSize,
                             job.model.virtualPipelineModelParallelSize,
                             job.model.pipelinePlacement);
}

model::PipelineShape pipelineShapeOf(const plan::Job &job) {
  return {job.model.pipelineModelParallelSize,
          job.model.virtualPipelineModelParallelSize,
          job.derived.numMicrobatches,
          job.model.microbatchGroupSizePerVpStage,
          placementOf(job),
          job.model.overlapMoeExpertParallelComm};
}

model::PassOrder passOrderOf(const plan::Job &job) {
  if (std::string rows = job.derived.passOrder; !rows.empty()) {
    std::ranges::replace(rows, '|', '\n');
    return model::readFaultless(rows, job.model.pipelineModelParallelSize,
                                job.derived.numMicrobatches);
  }
  SHARDC_CHECK(job.model.pipelineSchedule != plan::Job::PipelineSchedule::ZeroBubbleGreedy,
               "the job does not list its passes yet");
  return model::orderOf(job.model.pipelineSchedule, pipelineShapeOf(job));
}

/// Layers go to the stages in order, as many as the layout says. The embedding is on the first
/// stage, head and prediction blocks on the last one.
PipelineStages readStages(const plan::Plan &plan) {
  PipelineStages stages;
  stages.ofUnit.assign(plan.units.size(), 0);
  stages.count = plan.job.model.pipelineModelParallelSize;
  if (stages.count == 1)
    return stages;
  stages.chunks = plan.job.model.virtualPipelineModelParallelSize;
  const model::StageRequest request = stageRequestOf(plan);
  stages.placement = *request.placement;
  model::StageLayout layout = model::divideLayers(request);
  SHARDC_CHECK(layout.isValid(), "the layers have no stages: {}", layout.problem);
  size_t stage = 0;
  int64_t seen = 0; // layers of this stage so far
  for (size_t unit = 0; unit < plan.units.size(); ++unit) {
    switch (plan.units[unit].kind) {
    case plan::UnitKind::Layer:
      for (; seen == layout.layers[stage]; ++stage)
        seen = 0;
      ++seen;
      stages.ofUnit[unit] = static_cast<int32_t>(stage);
      break;
    case plan::UnitKind::Head:
    case plan::UnitKind::Prediction:
      stages.ofUnit[unit] = static_cast<int32_t>(layout.layers.size()) - 1;
      break;
    case plan::UnitKind::Embedding:
    case plan::UnitKind::Other:
      break;
    }
  }
  return stages;
}

} // namespace shardc::passes
