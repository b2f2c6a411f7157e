// Assigns each op of a body to stages, and finds the values that cross from one stage to another.
#include "compiler/passes/StageCut.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

using plan::Tie;

namespace {

/// Whether the op adds the losses of a microbatch to the step state. If a stage has no losses, its
/// step state is unchanged.
bool addsLosses(const Op &op) {
  plan::SumRole sum = plan::opInfo(op).sum;
  return sum == plan::SumRole::AddsLosses || sum == plan::SumRole::AddsEvalLosses;
}

const Tie *sumTie(const Op &op, uint8_t result) {
  for (const Tie &tie : op.ties)
    if (tie.kind == Tie::Acc && tie.result == result)
      return &tie;
  return nullptr;
}

} // namespace

StageCut::StageCut(const plan::Role &role, plan::Segment &body, const PipelineStages &stages)
    : body_(body), placement_(stages.placement),
      inputs_(static_cast<size_t>(stages.count * stages.chunks)), gradients_(inputs_.size()) {
  separateSums(stages);
  separateTallies(role, stages);
  separateReductions(stages);
  assign(role, stages);
  findCrossings();
  findResults();
}

/// Moves the sum of the residual stream at the beginning of a stage to the previous stage, so that
/// one value is sent instead of two.
void StageCut::separateSums(const PipelineStages &stages) {
  auto stageOfUnit = [&](int32_t unit) {
    return unit < 0 ? kEveryStage : stages.ofUnit[static_cast<size_t>(unit)];
  };
  std::vector<int32_t> unitOf(body_.values.size(), -1); // by value: the unit of its producer
  std::vector<Op> ops;
  for (Op &op : body_.ops) {
    for (ValueId result : op.results)
      unitOf[result] = op.unit;
    bool isFused = plan::opInfo(op).recompute == plan::Recompute::FusedNorm;
    if (isFused && stageOfUnit(unitOf[op.operands[1]]) != stageOfUnit(op.unit)) {
      Op add = plan::makeOp(OpKind::Add, {op.operands[0], op.operands[1]}, unitOf[op.operands[1]],
                            op.loc);
      add.phase = op.phase;
      add.results = {op.results[0]};
      ops.push_back(std::move(add));
      op.kind = *plan::opInfo(op).norm;
      op.operands.erase(op.operands.begin());
      op.operands[0] = op.results[0];
      op.results.erase(op.results.begin());
    }
    ops.push_back(std::move(op));
  }
  plan::replaceOps(body_, std::move(ops));
}

/// Each stage sums the tallies of its layers over a step in its own cell. The first pass of a step
/// begins the sum, and later chunks continue it. If each microbatch must be counted once per step,
/// the stage's last chunk adds the tallies of all chunks.
void StageCut::separateTallies(const plan::Role &role, const PipelineStages &stages) {
  std::vector<ValueId> firstOf(body_.values.size(), kNone); // by sum: the cell's old value
  std::map<std::pair<ValueId, int32_t>, ValueId> sums;      // latest sum, by cell and chunk
  std::set<std::pair<ValueId, int32_t>> begun;              // cells and stages whose sum has begun
  for (Op &op : body_.ops) {
    if (op.kind != OpKind::Tally)
      continue;
    SHARDC_CHECK(!op.ties.empty(), "'{}' goes on with no sum", plan::opInfo(op).name);
    Tie &tie = op.ties.front();
    ValueId first = firstOf[tie.value] == kNone ? tie.value : firstOf[tie.value];
    auto in = std::ranges::find(body_.ins, first, &plan::Segment::Boundary::value);
    int32_t chunk = stages.ofUnit[static_cast<size_t>(op.unit)];
    int32_t stage = placement_.stageOf(chunk), last = placement_.chunksOf(stage).back();
    if (role.cells[in->cell].kind == plan::CellKind::ExpertLoad && chunk != last) {
      chunkOfTally_[op.results[0]] = chunk = last;
      op.unit = -1; // the chunk does not have the layer
    }
    auto [sum, isNew] = sums.try_emplace({first, chunk}, first);
    tie.value = sum->second;
    if (isNew)
      tie.pred = begun.emplace(first, stage).second ? plan::Pred::NotFirst : plan::Pred::Always;
    sum->second = op.results[0];
    firstOf[op.results[0]] = first;
  }
  std::erase_if(body_.outs, [&](const auto &out) { return firstOf[out.value] != kNone; });
  for (const auto &[of, sum] : sums) {
    auto in = std::ranges::find(body_.ins, of.first, &plan::Segment::Boundary::value);
    body_.outs.push_back({sum, in->cell});
  }
}

/// Ranks of each stage sum their stage's contribution to a gradient. In the body, each of these
/// sums is added to the previous ones, like other contributions.
void StageCut::separateReductions(const PipelineStages &stages) {
  auto stageOfProducer = [&](ValueId value) {
    return stages.ofUnit[static_cast<size_t>(body_.ops[body_.values[value].def].unit)];
  };
  std::map<ValueId, Op> sumOf; // by the last contribution of another stage
  for (Op &op : body_.ops) {
    bool isSum = op.phase == plan::Phase::Backward &&
                 plan::opInfo(op).sum == plan::SumRole::Combines && !op.results.empty() &&
                 body_.values[op.results[0]].purpose == plan::Purpose::Grads;
    if (!isSum)
      continue;
    std::set<int32_t> begun = {stageOfProducer(op.results[0])};
    std::vector<Tie> *added = &op.ties;
    const Op alone = op;
    for (ValueId of = op.operands[0]; of != kNone; of = sumBefore(of)) {
      if (!begun.insert(stageOfProducer(of)).second)
        continue;
      Op &other = sumOf.emplace(of, alone).first->second;
      const plan::Value sum = body_.values[op.results[0]];
      other.operands[0] = of;
      other.unit = body_.ops[body_.values[of].def].unit;
      other.results = {plan::addValue(body_, fmt::format("{}.of.{}", sum.name, begun.size()),
                                      sum.type, sum.purpose)};
      added->push_back({Tie::Acc, 0, other.results[0]});
      added = &other.ties;
    }
  }
  if (sumOf.empty())
    return;
  std::vector<Op> ops;
  for (Op &op : body_.ops) {
    ops.push_back(std::move(op));
    const std::vector<ValueId> results = ops.back().results;
    for (ValueId result : results)
      if (auto sum = sumOf.find(result); sum != sumOf.end())
        ops.push_back(std::move(sum->second));
  }
  plan::replaceOps(body_, std::move(ops));
}

/// Gives each op its stage, and each value that of its op. Sums of losses and seen amaxes exist on
/// every stage.
void StageCut::assign(const plan::Role &role, const PipelineStages &stages) {
  ofValue_.assign(body_.values.size(), kEveryStage);
  isParam_.assign(body_.values.size(), 0);
  isAmaxSeen_.assign(body_.values.size(), 0);
  for (const plan::Segment::Boundary &in : body_.ins) {
    isParam_[in.value] = role.cells[in.cell].kind == plan::CellKind::Param ? 1 : 0;
    isAmaxSeen_[in.value] = role.cells[in.cell].kind == plan::CellKind::AmaxSeen ? 1 : 0;
  }
  ofOp_.reserve(body_.ops.size());
  for (const Op &op : body_.ops) {
    int32_t stage = stageOf(op, stages);
    ofOp_.push_back(stage);
    bool passesState =
        !op.results.empty() && body_.values[op.results[0]].purpose == plan::Purpose::Step;
    for (size_t r = 0; r < op.results.size(); ++r) {
      isAmaxSeen_[op.results[r]] = amaxSeenBefore(op, r) == kNone ? 0 : 1;
      bool isOfEvery = addsLosses(op) || isAmaxSeen_[op.results[r]] != 0;
      ofValue_[op.results[r]] = isOfEvery ? kEveryStage : stage;
      passesState |= isAmaxSeen_[op.results[r]] != 0;
    }
    passesState_.push_back(passesState ? 1 : 0);
  }
}

int32_t StageCut::stageOf(const Op &op, const PipelineStages &stages) const {
  if (op.kind == OpKind::Tally)
    if (auto moved = chunkOfTally_.find(op.results[0]); moved != chunkOfTally_.end())
      return moved->second;
  int32_t ofOperand = kEveryStage;
  bool readsParam = false;
  for (ValueId operand : op.operands) {
    ofOperand = std::max(ofOperand, ofValue_[operand]);
    readsParam |= isParam_[operand] != 0;
  }
  if (ofOperand == kEveryStage && !readsParam)
    return kEveryStage;
  return op.unit < 0 ? ofOperand : stages.ofUnit[static_cast<size_t>(op.unit)];
}

/// Finds the values that an op uses on another stage than that of the op that made them.
/// Accumulated gradients do not cross: each stage accumulates its own.
void StageCut::findCrossings() {
  for (size_t i = 0; i < body_.ops.size(); ++i) {
    const Op &op = body_.ops[i];
    if (ofOp_[i] == kEveryStage)
      continue;
    for (ValueId operand : op.operands)
      cross(op, operand, ofOp_[i]);
    for (const Tie &tie : op.ties)
      if (tie.kind != Tie::Acc || body_.values[tie.value].purpose != plan::Purpose::Grads)
        cross(op, tie.value, ofOp_[i]);
  }
}

/// From last to first, finds the backward ops whose results no sent gradient depends on: they only
/// make gradients of weights, and may run later.
void StageCut::findResults() {
  std::vector<uint8_t> isSent(body_.values.size());
  for (const std::vector<ValueId> &values : gradients_)
    for (ValueId value : values)
      isSent[value] = 1;
  results_.assign(body_.ops.size(), model::PassResult::Output);
  for (size_t i = body_.ops.size(); i-- > 0;) {
    const Op &op = body_.ops[i];
    if (op.phase != plan::Phase::Backward)
      continue;
    bool isAwaited =
        std::ranges::any_of(op.results, [&](ValueId each) { return isSent[each] != 0; });
    results_[i] = isAwaited ? model::PassResult::Inputs : model::PassResult::Weights;
    for (ValueId operand : op.operands)
      isSent[operand] |= static_cast<uint8_t>(isAwaited && isAmaxSeen_[operand] == 0);
    for (const Tie &tie : op.ties)
      isSent[tie.value] |= static_cast<uint8_t>(isAwaited);
  }
}

/// Records that an op of the stage reads the value.
void StageCut::cross(const Op &op, ValueId value, int32_t stage) {
  int32_t from = ofValue_[value];
  if (from == kEveryStage || from == stage)
    return;
  if (op.kind == OpKind::Tally && placement_.areTogether(from, stage))
    return; // the stage has the value
  bool isBackward = body_.ops[body_.values[value].def].phase == plan::Phase::Backward;
  SHARDC_CHECK(from == (isBackward ? stage + 1 : stage - 1),
               "'{}' of stage {} reads '{}' of stage {}", plan::opInfo(op).name, stage,
               body_.values[value].name, from);
  std::vector<ValueId> &taken = isBackward ? gradients_[at(stage)] : inputs_[at(stage)];
  if (std::ranges::find(taken, value) == taken.end())
    taken.push_back(value);
}

ValueId StageCut::contribution(ValueId gradient, int32_t stage) const {
  while (gradient != kNone && ofValue_[gradient] != stage)
    gradient = sumBefore(gradient);
  return gradient;
}

ValueId StageCut::addedTo(ValueId contribution, int32_t stage) const {
  return this->contribution(sumBefore(contribution), stage);
}

/// The sum of earlier contributions, of all stages, to which the op adds this gradient; kNone if
/// the gradient is the first contribution.
ValueId StageCut::sumBefore(ValueId gradient) const {
  const plan::Value &value = body_.values[gradient];
  const Tie *tie = value.def == kNone ? nullptr : sumTie(body_.ops[value.def], value.defResult);
  return tie == nullptr ? kNone : tie->value;
}

ValueId StageCut::amaxSeenBefore(const Op &op, size_t result) const {
  int operand = plan::inPlaceOperand(op, result);
  if (operand < 0 || isAmaxSeen_[op.operands[static_cast<size_t>(operand)]] == 0)
    return kNone;
  return op.operands[static_cast<size_t>(operand)];
}

Op StageCut::opFor(size_t index, int32_t stage) const {
  Op op = body_.ops[index];
  for (Tie &tie : op.ties)
    if (tie.kind == Tie::Acc && body_.values[tie.value].purpose == plan::Purpose::Grads)
      tie.value = contribution(tie.value, stage);
  std::erase_if(op.ties, [](const Tie &tie) { return tie.value == kNone; });
  return op;
}

} // namespace shardc::passes
