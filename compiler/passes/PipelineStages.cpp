#include "compiler/passes/PipelineStages.h"

#include <algorithm>

#include "compiler/model/Stages.h"
#include "runtime/base/Status.h"

namespace shardc::passes {

using plan::Pred;
using plan::ProgramNode;

PipelineStages readStages(const plan::Plan &plan) {
  PipelineStages stages;
  stages.ofUnit.assign(plan.units.size(), 0);
  stages.count = plan.job.model.pipelineModelParallelSize;
  if (stages.count == 1)
    return stages;
  model::StageRequest request;
  request.layers = std::ranges::count(plan.units, plan::UnitKind::Layer, &plan::Unit::kind);
  request.stages = stages.count;
  request.first = plan.job.model.numLayersInFirstPipelineStage;
  request.last = plan.job.model.numLayersInLastPipelineStage;
  request.countsEmbedding = plan.job.model.accountForEmbeddingInPipelineSplit;
  request.countsLoss = plan.job.model.accountForLossInPipelineSplit;
  request.layout = plan.job.model.pipelineModelParallelLayout;
  model::StageLayout layout = model::divideLayers(request);
  SHARDC_CHECK(layout.isValid(), "the layers have no stages: {}", layout.problem);
  size_t stage = 0;
  int64_t seen = 0; // layers of this stage
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
      stages.ofUnit[unit] = static_cast<int32_t>(stages.count) - 1;
      break;
    case plan::UnitKind::Embedding:
    case plan::UnitKind::Other:
      break;
    }
  }
  return stages;
}

StageSchedule::StageSchedule(int64_t stage, int64_t stages, int64_t microbatches)
    : stage_(stage), stages_(stages), microbatches_(microbatches),
      ahead_(std::min(microbatches, stages - 1 - stage)) {}

int64_t StageSchedule::inFlight() const { return std::min(microbatches_, ahead_ + 1); }

std::optional<Pred> StageSchedule::between(int64_t begin, int64_t last) const {
  begin = std::max<int64_t>(begin, 0);
  last = std::min(last, microbatches_ - 1);
  if (begin > last)
    return std::nullopt;
  bool isFromFirst = begin == 0, isToLast = last == microbatches_ - 1;
  if (isFromFirst && isToLast)
    return Pred::Always;
  if (isFromFirst && last == 0)
    return Pred::First;
  if (isToLast && begin == last)
    return Pred::Last;
  if (isFromFirst && last == microbatches_ - 2)
    return Pred::NotLast;
  if (isToLast && begin == 1)
    return Pred::NotFirst;
  return Pred::within(begin, last);
}

std::optional<Pred> StageSchedule::allButLast(int64_t microbatches) {
  return StageSchedule(0, 1, microbatches).between(0, microbatches - 2);
}

std::optional<Pred> StageSchedule::inputAfterForward() const {
  if (isFirst())
    return std::nullopt;
  return between(0, isLast() ? microbatches_ - 2 : std::min(ahead_, microbatches_ - 1) - 1);
}

std::optional<Pred> StageSchedule::gradientAfterForward() const {
  return isLast() ? std::nullopt : between(std::min(ahead_, microbatches_ - 1), microbatches_ - 1);
}

std::optional<Pred> StageSchedule::inputAfterBackward() const {
  return isFirst() || isLast() ? std::nullopt : between(0, microbatches_ - ahead_ - 2);
}

std::optional<Pred> StageSchedule::gradientAfterBackward() const {
  return isLast() ? std::nullopt : between(microbatches_ - ahead_ - 1, microbatches_ - 2);
}

std::vector<ProgramNode> StageSchedule::program(uint32_t forward, uint32_t backward) const {
  if (isLast())
    return {{ProgramNode::Run, forward, microbatches_, {}, {}}};
  auto run = [](uint32_t segment, int64_t base) {
    return ProgramNode{ProgramNode::Run, segment, 1, {}, plan::MicrobatchNumber{1, base}};
  };
  std::vector<ProgramNode> nodes;
  auto loop = [&](int64_t count, std::vector<ProgramNode> runs) {
    if (count > 0)
      nodes.push_back({ProgramNode::Loop, plan::kNone, count, std::move(runs), {}});
  };
  int64_t turns = microbatches_ - ahead_;
  loop(ahead_, {run(forward, 0)});
  loop(turns, {run(forward, ahead_), run(backward, 0)});
  loop(ahead_, {run(backward, turns)});
  return nodes;
}

} // namespace shardc::passes
