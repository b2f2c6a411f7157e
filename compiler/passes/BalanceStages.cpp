// Divides the layers of a pipeline by predicted time (`model.pipeline_split = balanced`), and
// writes the layout into the job, where all who ask for the layers of stages read it.
//
// A layer takes the time of its ops in the forward and in the backward pass, one after the other,
// with their exchanges inside the layer; the embedding adds to the first stage, and the head to the
// last one. The ops are those of the finished body: the passes that follow until it is cut run on a
// copy here. Recomputation by `block` is left out, since it adds the same to each stage.
#include <fmt/format.h>

#include "compiler/passes/Passes.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/Status.h"

namespace shardc::passes {
namespace {

/// The body of the whole model, after all passes that precede the division into stages.
plan::Plan finishedBody(const plan::Plan &plan) {
  plan::Plan body = plan;
  plan::Job::Model &model = body.job.model;
  model.pipelineModelParallelSize = model.virtualPipelineModelParallelSize = 1;
  if (model.recomputeMethod == plan::Job::RecomputeMethod::Block)
    model.recomputeGranularity.reset();
  finishBody(body, PassId::BalanceStages); // which leaves one stage as it is
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
