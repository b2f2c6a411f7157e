// Adds the ops that delayed scaling needs outside of the products: the initial amax history, and
// its update after each step.
#include "compiler/passes/DelayedScaling.h"

#include "compiler/passes/CellTable.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

using plan::CellKind;

namespace {

void fill(const plan::Role &role, plan::Segment &segment, CellKind kind, const char *name) {
  Op op = plan::makeOp(OpKind::Fill, {});
  addResultInCell(segment, role, op, name, plan::findCell(role, kind));
  plan::append(segment, std::move(op));
}

} // namespace

ValueId largestOfRanks(plan::Plan &plan, plan::Segment &segment, ValueId amaxes) {
  int16_t group = groupOfSteps(plan);
  if (plan.groupSize(group) == 1)
    return amaxes;
  Op op = plan::makeOp(OpKind::AllReduceMax, {amaxes});
  plan::setChannel(
      plan, op,
      plan::channelOf(plan, group, plan::StreamKind::Compute, plan::Transport::Nccl, "misc"));
  plan::Value of = segment.values[amaxes];
  op.results = {plan::addValue(segment, of.name + ".all", of.type, of.purpose)};
  ValueId all = op.results[0];
  plan::append(segment, std::move(op));
  return all;
}

DelayedScaling addDelayedScaling(const plan::Plan &plan, plan::Role &role,
                                 const std::vector<int32_t> &params) {
  constexpr int64_t kTensors = 3;
  DelayedScaling scaling;
  int64_t count = 0;
  for (int32_t param : params) {
    int64_t experts = plan.params[static_cast<size_t>(param)].tensorCount();
    if (scaling.slots.try_emplace(param, DelayedScaling::Slots{count, experts}).second)
      count += kTensors * experts;
  }
  Type type = Type::of(DType::F32, {count});
  scaling.amax =
      addCell(role, "amax", CellKind::Amax, type, plan::Arena::State, plan::Purpose::Step);
  scaling.seen =
      addCell(role, "amax_seen", CellKind::AmaxSeen, type, plan::Arena::State, plan::Purpose::Step);
  return scaling;
}

std::vector<int32_t> paramsOfValues(const plan::Role &role, const plan::Segment &segment) {
  std::vector<int32_t> params(segment.values.size(), -1);
  for (const plan::Segment::Boundary &in : segment.ins)
    if (role.cells[in.cell].kind == CellKind::Param)
      params[in.value] = role.cells[in.cell].of;
  for (const plan::Segment::Boundary &out : segment.outs)
    if (role.cells[out.cell].kind == CellKind::ParamGradient)
      params[out.value] = role.cells[out.cell].of;
  for (size_t i = segment.ops.size(); i-- > 0;) {
    const Op &op = segment.ops[i];
    if (op.results.empty() || params[op.results[0]] < 0)
      continue;
    bool isProduct = plan::opInfo(op).work.cost == plan::CostClass::Product;
    for (ValueId operand : op.operands)
      if (!isProduct && params[operand] < 0)
        params[operand] = params[op.results[0]];
    for (const plan::Tie &tie : op.ties)
      params[tie.value] = params[op.results[0]];
  }
  return params;
}

void addAmaxHistory(const plan::Plan &plan, plan::Role &role) {
  uint32_t seen = plan::findCell(role, CellKind::AmaxSeen);
  if (seen == kNone)
    return;
  Type type =
      Type::of(DType::F32, {plan.job.model.fp8AmaxHistoryLen, role.cells[seen].type.numel()});
  addCell(role, "amax_history", CellKind::AmaxHistory, type, plan::Arena::State,
          plan::Purpose::Step);
}

void initAmaxHistory(const plan::Role &role, plan::Segment &init) {
  fill(role, init, CellKind::AmaxHistory, "amax_history");
}

void takeAmax(const plan::Role &role, plan::Segment &prologue) {
  uint32_t history = plan::findCell(role, CellKind::AmaxHistory);
  if (uint32_t amax = plan::findCell(role, CellKind::Amax); amax != kNone) {
    Op view =
        plan::makeOp(OpKind::View, {plan::addLiveIn(prologue, "amax_history", role, history)});
    view.results = {plan::addValue(prologue, "amax_history.expected", role.cells[amax].type,
                                   role.cells[amax].purpose)};
    Op cast = plan::makeOp(OpKind::Cast, {view.results[0]});
    plan::append(prologue, std::move(view));
    addResultInCell(prologue, role, cast, "amax", amax);
    plan::append(prologue, std::move(cast));
  }
  fill(role, prologue, CellKind::AmaxSeen, "amax_seen");
}

void updateAmaxHistory(plan::Plan &plan, const plan::Role &role, plan::Segment &update,
                       ValueId state) {
  uint32_t history = plan::findCell(role, CellKind::AmaxHistory);
  uint32_t seen = plan::findCell(role, CellKind::AmaxSeen);
  ValueId last = plan::addLiveIn(update, "amax_history", role, history);
  ValueId largest = largestOfRanks(plan, update, plan::addLiveIn(update, "amax_seen", role, seen));
  const plan::Job::Model &model = plan.job.model;
  Op op = plan::makeOp(OpKind::AmaxUpdate, {last, largest, state});
  op.set(Key::margin, model.fp8Margin);
  op.set(Key::most_recent, int64_t{model.fp8AmaxComputeAlgo == plan::Job::AmaxAlgo::MostRecent});
  op.set(Key::interval, model.fp8Interval);
  addResultInCell(update, role, op, "amax_history.new", history);
  addResultInCell(update, role, op, "amax_seen.new", seen);
  if (uint32_t amax = plan::findCell(role, CellKind::Amax); amax != kNone)
    addResultInCell(update, role, op, "amax.new", amax);
  else
    op.results.push_back(
        plan::addValue(update, "amax.new", role.cells[seen].type, role.cells[seen].purpose));
  plan::append(update, std::move(op));
}

} // namespace shardc::passes
