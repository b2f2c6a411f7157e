// Writes a segment of a stage: what it has of a body of the whole model, what it receives and
// sends, and what it leaves for other segments of its stage.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/passes/StageCut.h"
#include "compiler/passes/StageSchedule.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

/// The links of a stage to its neighbours: the last stage is one of the first, whose next chunk
/// takes what it makes. A rank has a stream for each of its neighbours and each direction, so that
/// no transfer waits for another one.
class Links {
public:
  explicit Links(plan::Plan &plan) : plan_(plan) {}

  plan::Op send(plan::ValueId value, int32_t from, int32_t to, bool isForward) {
    plan::Op op = make(plan::OpKind::Send, from, to, isForward,
                       isForward ? plan::StreamKind::SendForward : plan::StreamKind::SendBackward);
    op.operands = {value};
    return op;
  }
  plan::Op receive(int32_t from, int32_t to, bool isForward) {
    return make(plan::OpKind::Recv, from, to, isForward,
                isForward ? plan::StreamKind::RecvForward : plan::StreamKind::RecvBackward);
  }

private:
  /// The channel runs on the stream of one end; the other one names its own. Between two stages
  /// there may be two channels of a direction, one for each order of the stages.
  plan::Op make(plan::OpKind kind, int32_t from, int32_t to, bool isForward,
                plan::StreamKind stream) {
    bool isRound = (from < to) != isForward;
    plan::StreamKind sends =
        isForward ? plan::StreamKind::SendForward : plan::StreamKind::SendBackward;
    plan::StreamKind receives =
        isForward ? plan::StreamKind::RecvForward : plan::StreamKind::RecvBackward;
    plan::Op op = plan::makeOp(kind, {});
    plan::setChannel(plan_, op,
                     plan::pairChannelOf(
                         plan_, static_cast<int16_t>(plan_.job.derived.stageGroup),
                         {std::min(from, to), std::max(from, to)}, isRound ? receives : sends,
                         fmt::format("{}.{}", isForward ? "fwd" : "bwd", isForward ? from : to)));
    op.stream = plan::streamOf(plan_, stream);
    return op;
  }

  plan::Plan &plan_;
};

/// What a segment has of a body.
struct SegmentPart {
  PassKind kind;
  int32_t chunk;                              ///< of the model
  bool isFirstHere = true, isLastHere = true; ///< of those that its stage has
};

/// Writes one segment of a stage.
class SegmentWriter {
public:
  SegmentWriter(Links &links, const plan::Segment &body, const StageCut &cut, int32_t stage,
                SegmentPart part)
      : links_(links), body_(body), cut_(cut), stage_(stage), part_(part),
        state_(body.values.size(), plan::kNone) {
    segment_.body = true;
    segment_.values = body.values;
  }

  /// The ops that the segment has of the body.
  void addOps() {
    for (size_t i = 0; i < body_.ops.size(); ++i)
      if (hasOp(i))
        addOp(cut_.opFor(i, part_.chunk));
    if (part_.kind != PassKind::Backward && part_.kind != PassKind::Both)
      moveGradients();
  }

  /// The value is what a cell holds at the start.
  void takeFromCell(plan::ValueId value, uint32_t cell, int64_t shift = 0) {
    segment_.ins.push_back({value, cell, false, shift});
  }
  /// What is left is of the microbatch so many behind the one under way.
  void leaveInCell(plan::ValueId value, uint32_t cell, int64_t shift = 0) {
    segment_.outs.push_back({value, cell, false, shift});
  }

  plan::ValueId newValue(plan::ValueId like, const char *suffix) {
    const plan::Value &value = body_.values[like];
    std::string name = value.name + suffix;
    if (int times = ++uses_[name]; times > 1)
      name += fmt::format(".{}", times);
    return plan::addValue(segment_, std::move(name), value.type, value.purpose);
  }

  /// Receives what is like `value` into the buffer of `before`, where the predicate holds; `before`
  /// may be kNone where it always does.
  plan::ValueId receive(plan::ValueId value, const char *suffix, int32_t from, bool isForward,
                        plan::Pred pred, plan::ValueId before) {
    plan::Op op = links_.receive(from, stage_, isForward);
    op.pred = pred;
    op.phase = phase();
    op.loc = body_.ops[body_.values[value].def].loc;
    plan::ValueId result = newValue(value, suffix);
    op.results = {result};
    if (pred != plan::Pred::Always)
      op.ties.push_back({plan::Tie::Else, 0, before});
    segment_.ops.push_back(std::move(op));
    return result;
  }

  /// `value` is what was received, in a buffer of its own.
  void copy(plan::ValueId received, plan::ValueId value) {
    plan::Op op =
        plan::makeOp(plan::OpKind::Cast, {received}, -1, body_.ops[body_.values[value].def].loc);
    op.phase = phase();
    op.results = {value};
    segment_.ops.push_back(std::move(op));
  }

  void send(const std::vector<plan::ValueId> &values, int32_t to, bool isForward) {
    for (plan::ValueId value : values) {
      plan::Op op = links_.send(value, stage_, to, isForward);
      op.phase = phase();
      op.loc = body_.ops[body_.values[value].def].loc;
      segment_.ops.push_back(std::move(op));
    }
  }

  std::vector<uint8_t> madeValues() const {
    std::vector<uint8_t> isMade(segment_.values.size());
    for (const plan::Op &op : segment_.ops)
      for (plan::ValueId result : op.results)
        isMade[result] = 1;
    return isMade;
  }

  /// With those of the body's boundaries that belong to the stage, and without what nothing reads.
  plan::Segment take(plan::SegmentKind kind, std::string name) {
    segment_.kind = kind;
    segment_.name = std::move(name);
    addOuts();
    plan::renumber(segment_);
    plan::removeDeadOps(segment_);
    removeUnreadLoads();
    addIns();
    return std::move(segment_);
  }

private:
  plan::Phase phase() const {
    return hasForward(part_.kind) ? plan::Phase::Forward : plan::Phase::Backward;
  }

  bool hasOp(size_t i) {
    const plan::Op &op = body_.ops[i];
    int32_t chunk = cut_.stageOfOp(i);
    if (!isOfPass(i))
      return false;
    if (chunk == part_.chunk || (chunk == kEveryStage && isHere(op)))
      return true;
    // No losses are added to the state here, nor is it begun or ended.
    bool isState = !op.results.empty() && cut_.stageOf(op.results[0]) == kEveryStage &&
                   plan::opInfo(op.kind).sum != plan::SumRole::Loads;
    if (isState)
      state_[op.results[0]] = resolved(op.operands[0]);
    return false;
  }

  bool isOfPass(size_t i) const {
    bool isBackward = body_.ops[i].phase == plan::Phase::Backward;
    switch (part_.kind) {
    case PassKind::Forward:
      return !isBackward;
    case PassKind::Backward:
      return isBackward;
    case PassKind::Both:
      return true;
    case PassKind::Inputs:
      return isBackward && !cut_.isWeightsOnly(i);
    case PassKind::Weights:
      return isBackward && cut_.isWeightsOnly(i);
    }
    return false;
  }

  /// Whether the chunk is the one of its stage that has what each stage has once: the first one
  /// begins with it, and the last one ends.
  bool isHere(const plan::Op &op) const {
    using enum plan::SumRole;
    plan::SumRole sum = plan::opInfo(op.kind).sum;
    if (sum == Loads || sum == BeginsStep || sum == BeginsEval)
      return part_.isFirstHere;
    if (sum == PacksEval || sum == Combines || sum == FinishesEval)
      return part_.isLastHere;
    return true;
  }

  /// Gradients of parameters that are made beside those of inputs are left for the other part of
  /// the backward pass, which has all of them in the end.
  void moveGradients() {
    for (const plan::Op &op : segment_.ops)
      for (plan::ValueId result : op.results)
        if (plan::Value &value = segment_.values[result];
            part_.kind != PassKind::Weights && value.purpose == plan::Purpose::Grads)
          value.purpose = plan::Purpose::Activations;
    for (const plan::Segment::Boundary &out : body_.outs) {
      plan::ValueId made = gradientOf(out);
      if (made == plan::kNone || isWeights(made) || part_.kind != PassKind::Weights)
        continue;
      segment_.values[made].purpose = plan::Purpose::Activations;
      plan::ValueId moved = plan::addValue(segment_, body_.values[made].name + ".all",
                                           body_.values[made].type, plan::Purpose::Grads);
      plan::Op op = plan::makeOp(plan::OpKind::Cast, {made}, body_.ops[body_.values[made].def].unit,
                                 body_.ops[body_.values[made].def].loc);
      op.phase = phase();
      op.results = {moved};
      segment_.ops.push_back(std::move(op));
      segment_.outs.push_back({moved, out.cell});
    }
  }

  /// The gradient of a parameter that the chunk has made in the end; kNone for other cells.
  plan::ValueId gradientOf(const plan::Segment::Boundary &out) const {
    bool isGradient = body_.values[out.value].purpose == plan::Purpose::Grads;
    return isGradient ? cut_.contribution(out.value, part_.chunk) : plan::kNone;
  }
  bool isWeights(plan::ValueId made) const { return cut_.isWeightsOnly(body_.values[made].def); }

  plan::ValueId resolved(plan::ValueId value) const {
    return value < state_.size() && state_[value] != plan::kNone ? state_[value] : value;
  }

  void addOp(plan::Op op) {
    for (plan::ValueId &operand : op.operands)
      operand = resolved(operand);
    for (plan::Tie &tie : op.ties)
      tie.value = resolved(tie.value);
    segment_.ops.push_back(std::move(op));
  }

  /// Gradients leave where they are made, the step state where the forward pass ends.
  void addOuts() {
    std::vector<uint8_t> isMade = madeValues();
    for (plan::Segment::Boundary out : body_.outs) {
      plan::ValueId gradient = gradientOf(out);
      bool isElsewhere = part_.kind == PassKind::Forward || part_.kind == PassKind::Inputs;
      if (gradient != plan::kNone && isElsewhere && !isWeights(gradient))
        continue; // moved
      bool isGradient = body_.values[out.value].purpose == plan::Purpose::Grads;
      out.value = isGradient ? gradient : resolved(out.value);
      if (out.value != plan::kNone && isMade[out.value] != 0)
        segment_.outs.push_back(out);
    }
  }

  std::vector<uint8_t> readValues() const {
    std::vector<uint8_t> isRead(segment_.values.size());
    for (const plan::Op &op : segment_.ops) {
      for (plan::ValueId operand : op.operands)
        isRead[operand] = 1;
      for (const plan::Tie &tie : op.ties)
        isRead[tie.value] = 1;
    }
    return isRead;
  }

  void removeUnreadLoads() {
    std::vector<uint8_t> isRead = readValues(), dead(segment_.ops.size());
    for (const plan::Segment::Boundary &out : segment_.outs)
      isRead[out.value] = 1;
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      const plan::Op &op = segment_.ops[i];
      dead[i] = static_cast<uint8_t>(plan::opInfo(op.kind).sum == plan::SumRole::Loads &&
                                     std::ranges::none_of(op.results, [&](plan::ValueId result) {
                                       return isRead[result] != 0;
                                     }));
    }
    plan::eraseOps(segment_, dead);
  }

  void addIns() {
    std::vector<uint8_t> isRead = readValues();
    for (const plan::Segment::Boundary &out : segment_.outs)
      isRead[out.value] = 1;
    for (const plan::Segment::Boundary &in : body_.ins)
      if (isRead[in.value] != 0)
        segment_.ins.push_back(in);
  }

  Links &links_;
  const plan::Segment &body_;
  const StageCut &cut_;
  int32_t stage_;
  SegmentPart part_;
  plan::Segment segment_;
  std::map<std::string, int> uses_;  ///< of names of received values
  std::vector<plan::ValueId> state_; ///< by value: the state that it is on this stage
};

} // namespace shardc::passes
