// Divides the layers of a pipeline by predicted time (`model.pipeline_split = balanced`), and
// writes the layout into the job, from which all passes read it.
//
// The time of a layer is the sum of the times of its ops in the forward and the backward pass,
// including the exchanges inside the layer. The time of the embedding is added to the first stage,
// that of the head to the last one. To get the final ops, the passes up to the split into stages
// run on a copy of the body. Recomputation by `block` is not included, since it adds the same time
// to each stage.
#include <fmt/format.h>

#include "compiler/passes/Passes.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/Status.h"

namespace shardc::passes {
namespace {

/// A copy of the plan after all passes that precede the split into stages.
plan::Plan finishedBody(const plan::Plan &plan) {
  plan::Plan body = plan;
  plan::Job::Model &model = body.job.model;
  model.pipelineModelParallelSize = model.virtualPipelineModelParallelSize = 1;
  model.pipelineSchedule = plan::Job::PipelineSchedule::OneForwardOneBackward;
  model.overlapMoeExpertParallelComm = false;
  body.job.derived.passOrder.clear();
  if (model.recomputeMethod == plan::Job::RecomputeMethod::Block)
    model.recomputeGranularity.reset();
  finishBody(body, PassId::BalanceStages); // leaves one stage unchanged
  return body;
}

/// The predicted seconds of each unit.
std::vector<double> secondsOfUnits(const plan::Plan &plan) {
  const predict::Device device = predict::deviceOf(plan);
  std::vector<double> seconds(plan.units.size());
  for (const plan::Segment &segment : plan.roles.front().segments) {
    if (!segment.body || countForwardOps(segment) == segment.ops.size())
      continue;
    for (const plan::Op &op : segment.ops)
      if (op.unit >= 0 && plan::opInfo(op).traits != plan::OpTraits::Alias)
        seconds[static_cast<size_t>(op.unit)] += predict::timeOf(device, plan, segment, op);
  }
  return seconds;
}

} // namespace

void addSeconds(const plan::Plan &body, model::StageRequest &request) {
  std::vector<double> seconds = secondsOfUnits(body);
  for (size_t unit = 0; unit < body.units.size(); ++unit) {
    switch (body.units[unit].kind) {
    case plan::UnitKind::Layer:
      request.seconds.push_back(seconds[unit]);
      break;
    case plan::UnitKind::Head:
    case plan::UnitKind::Prediction:
      request.behind += seconds[unit];
      break;
    case plan::UnitKind::Embedding:
    case plan::UnitKind::Other:
      request.before += seconds[unit];
      break;
    }
  }
}

void runBalanceStages(plan::Plan &plan, Notes &notes) {
  model::StageRequest request = stageRequestOf(plan);
  if (request.stages == 1 || !request.isBalanced || !request.layout.empty())
    return;
  addSeconds(finishedBody(plan), request);
  model::StageLayout layout = model::divideLayers(request);
  SHARDC_CHECK(layout.isValid(), "the layers have no stages: {}", layout.problem);
  plan.job.model.pipelineModelParallelLayout = model::layoutText(layout.layers);
  notes.push_back(
      {fmt::format("'model.pipeline_split = balanced' divides the layers as {}: a "
                   "layer is predicted to take {:.3g} ms of a microbatch, the embedding "
                   "{:.3g} ms and the head {:.3g} ms",
                   plan.job.model.pipelineModelParallelLayout, 1e3 * request.seconds.front(),
                   1e3 * request.before, 1e3 * request.behind),
       "balanced-stages"});
}

} // namespace shardc::passes
