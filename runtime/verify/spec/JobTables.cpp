// Compares a plan's tables, job and attributes with those of the model.
#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "runtime/plan/Builder.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {

std::optional<Optimizer> optimizerOfParam(const Plan &plan, int64_t param) {
  int32_t block = plan.params[static_cast<size_t>(param)].block;
  return optimizerOf(plan, plan.blocks[static_cast<size_t>(block)]);
}

namespace {

/// Whether the loss scale changes from step to step.
bool scalesLosses(const Job &job) { return scalingOf(job) == Scaling::Dynamic; }

/// How the plan's job differs from the model's; empty if it does not. The comparison leaves out
/// estimates that passes add, and fields that the recipe leaves to passes: these say how a step is
/// computed, and the proof covers the ops that compute it. No run reads them, and no save stores
/// them.
std::string differenceOfJobs(const Job &job, const Job &model) {
  const std::pair<JobField, bool> kOpen[] = {
      {JobField::ddp_keepFrozen, model.ddp.keepFrozen == Job::KeepFrozen::IfFits},
      {JobField::model_recomputeLayers,
       model.model.recomputeGranularity == Job::RecomputeGranularity::Auto &&
           model.model.recomputeLayers.empty()},
      {JobField::model_tpCommOverlap, model.model.tpCommOverlap},
      {JobField::derived_passOrder,
       model.model.pipelineSchedule == Job::PipelineSchedule::ZeroBubbleGreedy},
      {JobField::model_pipelineModelParallelLayout,
       model.model.pipelineSplit == Job::PipelineSplit::Balanced &&
           model.model.pipelineModelParallelLayout.empty()}};
  auto entriesOf = [&](const Job &of) {
    std::vector<Job::Entry> entries = of.entries();
    std::erase_if(entries, [&](const Job::Entry &entry) {
      return entry.first.starts_with("derived.predicted.") ||
             entry.first.starts_with("derived.memory.") ||
             std::ranges::any_of(kOpen, [&](const auto &open) {
               return open.second && jobInfo(open.first).path == entry.first;
             });
    });
    return entries;
  };
  const std::vector<Job::Entry> found = entriesOf(job), needed = entriesOf(model);
  auto text = [](auto at, auto end) {
    return at == end ? "nothing more"
                     : fmt::format("{} = {}", at->first, printJobValue(at->second));
  };
  auto [own, meant] = std::ranges::mismatch(found, needed);
  if (own == found.end() && meant == needed.end())
    return "";
  return fmt::format("the job has {} where the model's has {}", text(own, found.end()),
                     text(meant, needed.end()));
}

} // namespace

/// Refuses numbers of 16 bits in training if neither the model's plan nor the job's gradients have
/// their type: they would round what the model does not round.
bool Walk::checkTypes() {
  std::set<DType> known = {plan_.job.derived.wire, plan_.job.derived.mainGrads};
  for (const Param &param : goals_.plan->params)
    known.insert(param.type.dtype);
  for (const Role &role : goals_.plan->roles)
    for (const Segment &segment : role.segments)
      for (const plan::Value &value : segment.values)
        known.insert(value.type.dtype);
  for (const Role &role : plan_.roles)
    for (const Segment &segment : role.segments)
      for (const plan::Value &value : segment.values)
        if (DType type = value.type.dtype;
            segment.body && !known.contains(type) && (type == DType::BF16 || type == DType::F16))
          return refuse("segment '{}' has '%{}' in {}, a type that the model has nowhere",
                        segment.name, value.name, dtypeName(type));
  return true;
}

/// Checks that parameters exist in the model, and that they have its units, initial values and
/// learning rates.
bool Walk::checkTables() {
  if (std::string difference = differenceOfJobs(plan_.job, goals_.plan->job); !difference.empty())
    return refuse("{}", difference);
  if (!checkTypes())
    return false;
  if (!std::ranges::equal(plan_.units, goals_.plan->units, {}, &Unit::kind, &Unit::kind))
    return refuse("the units are not the model's");
  auto unitOf = [](const Plan &plan, const Param &param) {
    return param.block < 0 ? -1 : plan.blocks[static_cast<size_t>(param.block)].unit;
  };
  auto kindOf = [](const Plan &plan, int32_t unit) {
    return unit < 0 ? UnitKind::Other : plan.units[static_cast<size_t>(unit)].kind;
  };
  std::set<int32_t> blocks; // whose unit is that of their first parameter
  for (size_t p = 0; p < plan_.params.size(); ++p) {
    const Param &param = plan_.params[p];
    int64_t goal = goalOf_[p];
    if (goal < 0)
      return refuse("the model has no parameter '{}'", param.name);
    if (goal != static_cast<int64_t>(p)) // operations are counted in this order
      return refuse("parameter '{}' has place {} in the plan and {} in the model", param.name, p,
                    goal);
    const Param &meant = goals_.plan->params[static_cast<size_t>(goal)];
    std::optional<Optimizer> optimizer = optimizerOfParam(plan_, static_cast<int64_t>(p));
    const std::pair<std::string_view, bool> kSame[] = {
        {"initialised", param.init == meant.init && param.initStd == meant.initStd &&
                            param.isStacked() == meant.isStacked()},
        {"trained", param.lrMult == meant.lrMult && param.wdMult == meant.wdMult &&
                        param.isDecoupled == meant.isDecoupled &&
                        isTrained(plan_, param) == isTrained(*goals_.plan, meant)},
        {"updated",
         optimizer == optimizerOfParam(*goals_.plan, goal) && param.turns == meant.turns},
        {"counted", blocks.insert(param.block).second
                        ? unitOf(plan_, param) == unitOf(*goals_.plan, meant)
                        : kindOf(plan_, unitOf(plan_, param)) ==
                              kindOf(*goals_.plan, unitOf(*goals_.plan, meant))},
        {"shaped", param.wholeType() == meant.wholeType()}};
    for (auto [how, isSame] : kSame)
      if (!isSame)
        return refuse("parameter '{}' is not {} as in the model", param.name, how);
    if (int dims = param.rowDim() + 2; optimizer && needsMatrices(*optimizer) &&
                                       param.type.rank != dims && isTrained(plan_, param))
      return refuse("parameter '{}' has {} dimensions; its optimizer needs {}", param.name,
                    param.type.rank, dims);
    int64_t period = std::accumulate(meant.turns.begin(), meant.turns.end(), int64_t{0});
    if (period != 0 && meant.wholeType().shape[meant.rowDim()] % period != 0)
      return refuse("parameter '{}' does not have whole groups of {} rows", param.name, period);
  }
  return plan_.params.size() == goals_.params.size() ||
         refuse("has {} parameters, the model has {}", plan_.params.size(), goals_.params.size());
}

/// Checks that dispatched rows have room for all places that make_runs in their segment chooses.
void Walk::checkPlaces(const At &at) {
  const Segment &segment = at.role.segment();
  uint32_t def = segment.values[at.op.operands[1]].def;
  while (def != kNone && segment.ops[def].kind == OpKind::View)
    def = segment.values[segment.ops[def].operands[0]].def;
  if (def == kNone || segment.ops[def].kind != OpKind::MakeRuns)
    return;
  int64_t rows = typeOf(at, at.op.results[0]).shape[0];
  if (int64_t bound = segment.ops[def].getInt(AttrKey::bound); bound != rows)
    refuse(at, "makes {} rows; their places are among {}", rows, bound);
}

/// Checks attributes that follow from the job's options.
void Walk::checkHyper(const At &at) {
  const Job &job = goals_.plan->job;
  auto check = [&](AttrKey key, double needed) {
    double found = attrInfo(key).type == AttrInfo::Float ? at.op.getFloat(key)
                                                         : static_cast<double>(at.op.getInt(key));
    if (found != needed)
      refuse(at, "has {} = {}; the job needs {}", attrInfo(key).name, found, needed);
  };
#define HYPER(op_, attribute, value)                                                               \
  if (at.op.kind == OpKind::op_)                                                                   \
    check(AttrKey::attribute, static_cast<double>(value));
#include "runtime/verify/spec/Spec.def"
  if (at.op.kind == OpKind::MakeRuns && job.model.moeExpertRankCapacityFactor == 0) {
    const Type &ids = typeOf(at, at.op.operands[0]), &counts = typeOf(at, at.op.results[0]);
    int64_t rows = counts.shape[0] * ids.shape[0] * std::min(ids.shape[1], counts.shape[1]);
    if (int64_t bound = at.op.getInt(AttrKey::bound); bound < rows)
      refuse(at, "has a capacity of {} rows; the router may choose {}", bound, rows);
  }
  if (at.op.kind == OpKind::Dispatch)
    checkPlaces(at);
  if (!opInfo(at.op).isOptimizer())
    return;
  int64_t block = at.op.getInt(AttrKey::block);
  std::optional<Optimizer> optimizer;
  if (block >= 0 && block < static_cast<int64_t>(plan_.blocks.size()))
    optimizer = optimizerOf(plan_, plan_.blocks[static_cast<size_t>(block)]);
  if (!optimizer || optimizerInfo(*optimizer).op != at.op.kind) {
    refuse(at, "is not the optimizer of the block");
    return;
  }
  for (const Scalar &scalar : scalarsOf(*optimizer, job))
    check(scalar.key, scalar.value);
  bool isConstant = job.scheduler.weightDecayIncrStyle == Job::WeightDecayStyle::Constant;
  double decay = !isConstant                         ? 0
                 : job.scheduler.endWeightDecay >= 0 ? job.scheduler.endWeightDecay
                                                     : job.optimizer.weightDecay;
  check(AttrKey::weight_decay, decay);
  check(AttrKey::decoupled, job.optimizer.decoupledWeightDecay ? 1 : 0);
}

} // namespace shardc::plan::spec
