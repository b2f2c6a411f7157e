// Checks whether a hand-written plan meets the preconditions of a pass.
#include "compiler/passes/PassInputs.h"

#include <algorithm>

#include "compiler/model/LayerList.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::CellKind;
using Needed = std::optional<std::string>;

std::string cellOf(const plan::Role &role, CellKind kind) {
  return fmt::format("a cell '{}'; role '{}' has none", plan::cellKindInfo(kind).word, role.name);
}

std::string cellOf(const plan::Role &role, CellKind kind, const plan::Block &block) {
  return fmt::format("a cell '{} of {}'; role '{}' has none", plan::cellKindInfo(kind).word,
                     block.name, role.name);
}

Needed findNeededOfParams(const plan::Plan &plan) {
  for (const plan::Param &param : plan.params)
    if (param.block < 0 || plan.blocks[static_cast<size_t>(param.block)].unit < 0)
      return fmt::format("parameters in blocks of units; '{}' is in no block", param.name);
  return std::nullopt;
}

/// In each role that has a block, the block must have weights and, if it is trained, a gradient. At
/// least one role must have it.
Needed findNeededByCollectives(const plan::Plan &plan) {
  size_t count = plan.blocks.size();
  std::vector<uint8_t> found(count);
  for (const plan::Role &role : plan.roles) {
    std::vector<uint32_t> weights = plan::findCells(role, CellKind::Weight, count);
    std::vector<uint32_t> gradients = plan::findCells(role, CellKind::Gradient, count);
    for (size_t b = 0; b < count; ++b) {
      bool hasWeight = weights[b] != kNone, hasGradient = gradients[b] != kNone;
      bool isComplete =
          hasWeight ? hasGradient || !plan.classOf(plan.blocks[b]).isTrained : !hasGradient;
      if (!isComplete)
        return cellOf(role, hasWeight ? CellKind::Gradient : CellKind::Weight, plan.blocks[b]);
      found[b] |= static_cast<uint8_t>(hasWeight);
    }
  }
  for (size_t b = 0; b < count && !plan.roles.empty(); ++b)
    if (found[b] == 0)
      return cellOf(plan.roles.front(), CellKind::Weight, plan.blocks[b]);
  return std::nullopt;
}

/// Each role must have the step state, the stop flag, and a gradient of each trained block whose
/// weights it has.
Needed findNeededByUpdate(const plan::Plan &plan) {
  for (const plan::Role &role : plan.roles) {
    for (CellKind kind : {CellKind::Step, CellKind::Stop})
      if (plan::findCell(role, kind) == kNone)
        return cellOf(role, kind);
    std::vector<uint8_t> hasGradient(plan.blocks.size());
    for (const plan::Cell &cell : role.cells)
      if (cell.kind == CellKind::Gradient || cell.kind == CellKind::GradientShard ||
          cell.kind == CellKind::ReducedGradient)
        hasGradient[static_cast<size_t>(cell.of)] = 1;
    for (const plan::Cell &cell : role.cells)
      if (cell.kind == CellKind::Weight && hasGradient[static_cast<size_t>(cell.of)] == 0)
        if (const plan::Block &block = plan.blocks[static_cast<size_t>(cell.of)];
            plan.classOf(block).isTrained)
          return cellOf(role, CellKind::Gradient, block);
  }
  return std::nullopt;
}

/// A segment must store the gradients of all parameters of a block, or of none.
Needed findNeededByUnits(const plan::Plan &plan) {
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      std::vector<uint8_t> isLeft(plan.params.size()), ofBlock(plan.blocks.size());
      for (const plan::Segment::Boundary &out : segment.outs)
        if (const plan::Cell &cell = role.cells[out.cell]; cell.kind == CellKind::ParamGradient) {
          auto param = static_cast<size_t>(cell.of);
          isLeft[param] = 1;
          ofBlock[static_cast<size_t>(plan.params[param].block)] = 1;
        }
      for (size_t param = 0; param < plan.params.size(); ++param)
        if (auto block = static_cast<size_t>(plan.params[param].block);
            ofBlock[block] != 0 && isLeft[param] == 0)
          return fmt::format("the gradients of all parameters of block '{}'; segment '{}' leaves "
                             "none of '{}'",
                             plan.blocks[block].name, segment.name, plan.params[param].name);
    }
  return std::nullopt;
}

/// Stages must be a group along one axis, and each body must have microbatches.
Needed findNeededByStages(const plan::Plan &plan) {
  if (plan.job.model.pipelineModelParallelSize == 1)
    return std::nullopt;
  int16_t stages = plan::groupOfKind(plan, plan::GroupKind::Stages);
  if (stages < 0 || plan.groups[static_cast<size_t>(stages)].axes.size() != 1)
    return "a group of the kind 'stages' along one axis";
  if (plan.roles.size() != 1)
    return fmt::format("a plan of one role; it has {}", plan.roles.size());
  for (const plan::Segment &segment : plan.roles.front().segments) {
    bool isEval = segment.kind == plan::SegmentKind::Eval;
    int64_t count = isEval ? plan.job.derived.evalMicrobatches : plan.job.derived.numMicrobatches;
    if (segment.body && count < 1)
      return fmt::format("microbatches for segment '{}'; '{}' is {}", segment.name,
                         isEval ? "derived.eval_microbatches" : "derived.num_microbatches", count);
  }
  return std::nullopt;
}

/// The lists of the job must be of the plan's layers.
Needed findNeededOfLayers(const plan::Plan &plan) {
  auto layers = std::ranges::count(plan.units, plan::UnitKind::Layer, &plan::Unit::kind);
  auto needed = [&](plan::JobField field, const std::vector<std::string> &entries,
                    const model::LayerWords &words) -> Needed {
    model::LayerList read = model::readLayerList(entries, layers, words);
    if (entries.empty() || read.isValid())
      return std::nullopt;
    return fmt::format("another '{}': {}", plan::jobInfo(field).path, read.problem);
  };
  const plan::Job::Model &model = plan.job.model;
  Needed list =
      needed(plan::JobField::model_recomputeLayers, model.recomputeLayers, model::kRecomputeWords);
  return list ? list
              : needed(plan::JobField::model_offloadLayers, model.offloadLayers,
                       model::kOffloadWords);
}

} // namespace

Needed findNeeded(PassId id, const plan::Plan &plan) {
  if (Needed params = findNeededOfParams(plan))
    return params;
  switch (id) {
  case PassId::Backward:
    return findNeededByBackward(plan);
  case PassId::Recompute:
  case PassId::Offload:
    return findNeededOfLayers(plan);
  case PassId::Quantize:
    return findNeededByQuantize(plan);
  case PassId::SplitStages:
    return findNeededByStages(plan);
  case PassId::ShardUnits:
    return findNeededByUnits(plan);
  case PassId::InsertCollectives:
    return findNeededByCollectives(plan);
  case PassId::BuildUpdate:
    return findNeededByUpdate(plan);
  default:
    return std::nullopt;
  }
}

} // namespace shardc::passes
