// Cuts the one role of a logical plan into a role for each stage of a pipeline. A stage has the
// layers that the job gives it; what the next stage needs of a microbatch is sent when it is made,
// and received one pass before it is used. Forward and backward pass are segments of their own, and
// what the backward pass needs of the forward pass is kept in rings with a slot for each microbatch
// in flight. The last stage runs the backward pass of a microbatch right behind its forward pass,
// so there both are one segment. A parameter that two stages use has a copy on each.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/StageCut.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Phase;
using plan::Pred;
using plan::Segment;
using plan::SegmentKind;
using plan::StreamKind;
using plan::ValueId;

/// What a segment of a stage has of the body that it is cut from.
enum class BodyPart { All, Forward, Backward };

/// The links of a stage to its neighbours. A rank has a stream for each of its neighbours and each
/// direction, so that no transfer waits for another one.
class Links {
public:
  explicit Links(plan::Plan &plan) : plan_(plan) {}

  Op send(ValueId value, int32_t from, int32_t to) {
    Op op = make(OpKind::Send, from, to,
                 from < to ? StreamKind::SendForward : StreamKind::SendBackward);
    op.operands = {value};
    return op;
  }
  Op receive(int32_t from, int32_t to) {
    return make(OpKind::Recv, from, to,
                from < to ? StreamKind::RecvForward : StreamKind::RecvBackward);
  }

private:
  /// The channel runs on the stream of the one who sends; the other end names its own.
  Op make(OpKind kind, int32_t from, int32_t to, StreamKind stream) {
    bool isForward = from < to;
    int32_t first = std::min(from, to);
    Op op = plan::makeOp(kind, {});
    plan::setChannel(
        plan_, op,
        plan::pairChannelOf(plan_, static_cast<int16_t>(plan_.job.derived.stageGroup),
                            {first, first + 1},
                            isForward ? StreamKind::SendForward : StreamKind::SendBackward,
                            fmt::format("{}.{}", isForward ? "fwd" : "bwd", first)));
    op.stream = plan::streamOf(plan_, stream);
    return op;
  }

  plan::Plan &plan_;
};

/// Writes one segment of a stage.
class SegmentWriter {
public:
  SegmentWriter(Links &links, const Segment &body, const StageCut &cut, int32_t stage,
                BodyPart part)
      : links_(links), body_(body), cut_(cut), stage_(stage), part_(part),
        state_(body.values.size(), kNone) {
    segment_.body = true;
    segment_.values = body.values;
  }

  /// The ops that the stage has of the body.
  void addOps() {
    for (size_t i = 0; i < body_.ops.size(); ++i)
      if (hasOp(i))
        addOp(cut_.opFor(i, stage_));
  }

  /// The value is what a cell holds at the start.
  void takeFromCell(ValueId value, uint32_t cell) { segment_.ins.push_back({value, cell}); }
  /// What is left is of the microbatch so many behind the one under way.
  void leaveInCell(ValueId value, uint32_t cell, int64_t shift = 0) {
    segment_.outs.push_back({value, cell, false, shift});
  }

  ValueId newValue(ValueId like, const char *suffix) {
    const plan::Value &value = body_.values[like];
    return plan::addValue(segment_, value.name + suffix, value.type, value.purpose);
  }

  /// Receives what is like `value` into the buffer of `before`, where the predicate holds; `before`
  /// is kNone where it always does.
  ValueId receive(ValueId value, const char *suffix, int32_t from, Pred pred, ValueId before) {
    Op op = links_.receive(from, stage_);
    op.pred = pred;
    op.phase = phase();
    op.loc = body_.ops[body_.values[value].def].loc;
    ValueId result = newValue(value, suffix);
    op.results = {result};
    if (before != kNone)
      op.ties.push_back({plan::Tie::Else, 0, before});
    segment_.ops.push_back(std::move(op));
    return result;
  }

  /// `value` is what was received, in a buffer of its own.
  void copy(ValueId received, ValueId value) {
    Op op = plan::makeOp(OpKind::Cast, {received}, -1, body_.ops[body_.values[value].def].loc);
    op.phase = phase();
    op.results = {value};
    segment_.ops.push_back(std::move(op));
  }

  void send(const std::vector<ValueId> &values, int32_t to) {
    for (ValueId value : values) {
      Op op = links_.send(value, stage_, to);
      op.phase = phase();
      op.loc = body_.ops[body_.values[value].def].loc;
      segment_.ops.push_back(std::move(op));
    }
  }

  std::vector<uint8_t> madeValues() const {
    std::vector<uint8_t> isMade(segment_.values.size());
    for (const Op &op : segment_.ops)
      for (ValueId result : op.results)
        isMade[result] = 1;
    return isMade;
  }

  /// With those of the body's boundaries that belong to the stage, and without what nothing reads.
  Segment take(SegmentKind kind) {
    segment_.kind = kind;
    segment_.name = plan::segmentKindInfo(kind).word;
    addOuts();
    plan::renumber(segment_);
    plan::removeDeadOps(segment_);
    removeUnreadLoads();
    addIns();
    return std::move(segment_);
  }

private:
  Phase phase() const { return part_ == BodyPart::Backward ? Phase::Backward : Phase::Forward; }

  bool hasOp(size_t i) {
    const Op &op = body_.ops[i];
    int32_t stage = cut_.stageOfOp(i);
    bool isBackward = op.phase == Phase::Backward;
    if (part_ != BodyPart::All && isBackward != (part_ == BodyPart::Backward))
      return false;
    if (stage == stage_ || stage == kEveryStage)
      return true;
    // No losses are added to the state here.
    if (!op.results.empty() && cut_.stageOf(op.results[0]) == kEveryStage)
      state_[op.results[0]] = resolved(op.operands[0]);
    return false;
  }

  ValueId resolved(ValueId value) const {
    return value < state_.size() && state_[value] != kNone ? state_[value] : value;
  }

  void addOp(Op op) {
    for (ValueId &operand : op.operands)
      operand = resolved(operand);
    for (plan::Tie &tie : op.ties)
      tie.value = resolved(tie.value);
    segment_.ops.push_back(std::move(op));
  }

  /// Gradients leave where they are made, the step state where the forward pass ends.
  void addOuts() {
    std::vector<uint8_t> isMade = madeValues();
    for (plan::Segment::Boundary out : body_.outs) {
      bool isGradient = body_.values[out.value].purpose == plan::Purpose::Grads;
      out.value = isGradient ? cut_.contribution(out.value, stage_) : resolved(out.value);
      if (out.value != kNone && isMade[out.value] != 0)
        segment_.outs.push_back(out);
    }
  }

  std::vector<uint8_t> readValues() const {
    std::vector<uint8_t> isRead(segment_.values.size());
    for (const Op &op : segment_.ops) {
      for (ValueId operand : op.operands)
        isRead[operand] = 1;
      for (const plan::Tie &tie : op.ties)
        isRead[tie.value] = 1;
    }
    return isRead;
  }

  void removeUnreadLoads() {
    std::vector<uint8_t> isRead = readValues(), dead(segment_.ops.size());
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      dead[i] = static_cast<uint8_t>(
          plan::opInfo(op.kind).sum == plan::SumRole::Loads &&
          std::ranges::none_of(op.results, [&](ValueId result) { return isRead[result] != 0; }));
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
  const Segment &body_;
  const StageCut &cut_;
  int32_t stage_;
  BodyPart part_;
  Segment segment_;
  std::vector<ValueId> state_; ///< by value: the state that it is on this stage
};

/// A body of the whole model, and where it is cut.
struct CutBody {
  const Segment &segment;
  StageCut cut;
};

/// Makes the role of one stage.
class StageBuilder {
public:
  StageBuilder(plan::Plan &plan, plan::Role &role, int32_t stage, int32_t stages)
      : plan_(plan), links_(plan), role_(role), stage_(stage),
        schedule_(stage, stages, plan.job.derived.numMicrobatches) {}

  void addTraining(const CutBody &body) {
    if (schedule_.isLast()) {
      role_.segments.push_back(passOf(body, SegmentKind::Train, schedule_.microbatches()));
      return;
    }
    Segment backward = backwardOf(body);
    role_.segments.push_back(
        passOf(body, SegmentKind::Forward, schedule_.microbatches(), &backward));
    role_.segments.push_back(std::move(backward));
  }

  void addEvaluation(const CutBody &body) {
    role_.segments.push_back(passOf(body, SegmentKind::Eval, plan_.job.derived.evalMicrobatches));
  }

  /// The program of the whole model, with the runs of this stage.
  std::vector<plan::ProgramNode> programLike(const plan::Role &whole,
                                             const std::vector<plan::ProgramNode> &nodes) const {
    std::vector<plan::ProgramNode> own;
    for (const plan::ProgramNode &node : nodes) {
      plan::ProgramNode copy = node;
      copy.children = programLike(whole, node.children);
      if (node.segment != kNone) {
        SegmentKind kind = whole.segments[node.segment].kind;
        if (kind == SegmentKind::Train) {
          std::ranges::move(runsOfStep(), std::back_inserter(own));
          continue;
        }
        copy.segment = plan::findSegment(role_, kind);
      }
      own.push_back(std::move(copy));
    }
    return own;
  }

private:
  std::vector<plan::ProgramNode> runsOfStep() const {
    bool isLast = schedule_.isLast();
    return schedule_.program(
        plan::findSegment(role_, isLast ? SegmentKind::Train : SegmentKind::Forward),
        plan::findSegment(role_, SegmentKind::Backward));
  }

  /// Cells in which received values wait, by their position among them.
  uint32_t inbox(std::vector<uint32_t> &cells, size_t position, const plan::Value &value,
                 const char *prefix) {
    if (position == cells.size())
      cells.push_back(plan::addCell(role_, prefix + value.name, plan::CellKind::Buffer, value.type,
                                    plan::Arena::Work, plan::Purpose::Activations));
    return cells[position];
  }

  /// A forward pass, which keeps what a backward pass reads, or both at once.
  Segment passOf(const CutBody &body, SegmentKind kind, int64_t microbatches,
                 Segment *backward = nullptr) {
    BodyPart part = kind == SegmentKind::Forward ? BodyPart::Forward : BodyPart::All;
    SegmentWriter writer(links_, body.segment, body.cut, stage_, part);
    bool isEval = kind == SegmentKind::Eval;
    std::optional<Pred> next;
    if (!schedule_.isFirst())
      next = isEval ? StageSchedule::allButLast(microbatches) : schedule_.inputAfterForward();
    const std::vector<ValueId> &inputs = body.cut.inputs(stage_);
    for (size_t k = 0; k < inputs.size(); ++k)
      takeInput(writer, body, inputs[k], k, microbatches, next);
    if (part == BodyPart::Forward)
      receiveGradients(writer, body, schedule_.gradientAfterForward());
    writer.addOps();
    if (!schedule_.isLast())
      writer.send(body.cut.inputs(stage_ + 1), stage_ + 1);
    if (part == BodyPart::All && !isEval && !schedule_.isFirst())
      writer.send(body.cut.gradients(stage_ - 1), stage_ - 1);
    if (backward != nullptr)
      keep(writer, *backward, body.segment);
    return writer.take(kind);
  }

  /// The first pass of a step receives its own input, and each one the next pass'. It copies its
  /// own, so that the next one may come at once.
  void takeInput(SegmentWriter &writer, const CutBody &body, ValueId value, size_t position,
                 int64_t microbatches, std::optional<Pred> next) {
    const plan::Value &taken = body.segment.values[value];
    bool isOne = microbatches == 1;
    ValueId before = kNone;
    uint32_t cell = isOne ? kNone : inbox(inputs_, position, taken, "in.");
    if (!isOne) {
      before = writer.newValue(value, ".waiting");
      writer.takeFromCell(before, cell);
    }
    ValueId now =
        writer.receive(value, ".in", stage_ - 1, isOne ? Pred::Always : Pred::First, before);
    writer.copy(now, value);
    if (next)
      writer.leaveInCell(writer.receive(value, ".next", stage_ - 1, *next, now), cell, 1);
  }

  Segment backwardOf(const CutBody &body) {
    SegmentWriter writer(links_, body.segment, body.cut, stage_, BodyPart::Backward);
    receiveInputs(writer, body, schedule_.inputAfterBackward());
    writer.addOps();
    const std::vector<ValueId> &gradients = body.cut.gradients(stage_);
    for (size_t k = 0; k < gradients.size(); ++k) {
      uint32_t cell = inbox(gradients_, k, body.segment.values[gradients[k]], "in.");
      writer.takeFromCell(gradients[k], cell);
      if (std::optional<Pred> next = schedule_.gradientAfterBackward())
        writer.leaveInCell(writer.receive(gradients[k], ".next", stage_ + 1, *next, gradients[k]),
                           cell, 1);
    }
    if (!schedule_.isFirst())
      writer.send(body.cut.gradients(stage_ - 1), stage_ - 1);
    return writer.take(SegmentKind::Backward);
  }

  /// What another pass takes, into its cells.
  void receiveAhead(SegmentWriter &writer, const CutBody &body, const std::vector<ValueId> &values,
                    std::vector<uint32_t> &cells, int32_t from, std::optional<Pred> pred,
                    int64_t shift) {
    for (size_t k = 0; pred && k < values.size(); ++k) {
      uint32_t cell = inbox(cells, k, body.segment.values[values[k]], "in.");
      ValueId before = kNone;
      if (*pred != Pred::Always) {
        before = writer.newValue(values[k], ".waiting");
        writer.takeFromCell(before, cell);
      }
      writer.leaveInCell(writer.receive(values[k], ".next", from, *pred, before), cell, shift);
    }
  }

  void receiveInputs(SegmentWriter &writer, const CutBody &body, std::optional<Pred> pred) {
    if (!schedule_.isFirst())
      receiveAhead(writer, body, body.cut.inputs(stage_), inputs_, stage_ - 1, pred,
                   schedule_.inputShift());
  }
  void receiveGradients(SegmentWriter &writer, const CutBody &body, std::optional<Pred> pred) {
    if (!schedule_.isLast())
      receiveAhead(writer, body, body.cut.gradients(stage_), gradients_, stage_ + 1, pred,
                   schedule_.gradientShift());
  }

  /// Lets the backward pass find what the forward pass has made.
  void keep(SegmentWriter &forward, Segment &backward, const Segment &body) {
    std::vector<uint8_t> isMade = forward.madeValues();
    auto read = [&](ValueId value) {
      if (value >= body.values.size() || isMade[value] == 0)
        return;
      isMade[value] = 0; // once
      const plan::Value &kept = body.values[value];
      uint32_t cell = plan::addCell(role_, "keep." + kept.name, plan::CellKind::Buffer, kept.type,
                                    plan::Arena::Work, kept.purpose);
      role_.cells[cell].slots = static_cast<int32_t>(schedule_.inFlight());
      forward.leaveInCell(value, cell);
      backward.ins.push_back({value, cell});
    };
    for (const Op &op : backward.ops) {
      std::ranges::for_each(op.operands, read);
      for (const plan::Tie &tie : op.ties)
        read(tie.value);
    }
  }

  plan::Plan &plan_;
  Links links_;
  plan::Role &role_;
  int32_t stage_;
  StageSchedule schedule_;
  std::vector<uint32_t> inputs_, gradients_; ///< cells in which they wait
};

/// The ranks of a stage are those with its coordinate on the axis of stages.
plan::AxisRange ranksOf(const plan::Plan &plan, int32_t stage) {
  const plan::Group &group = plan.groups[static_cast<size_t>(plan.job.derived.stageGroup)];
  SHARDC_CHECK(group.axes.size() == 1, "stages lie along one axis");
  return {group.axes.front(), stage, stage + 1};
}

std::string describe(const plan::Plan &plan, const PipelineStages &stages, int32_t stage) {
  std::vector<std::string> units;
  for (size_t unit = 0; unit < plan.units.size(); ++unit)
    if (stages.ofUnit[unit] == stage)
      units.push_back(plan.units[unit].name);
  if (units.size() == 1)
    return fmt::format("it has {}", units.front());
  return fmt::format("it has {} to {}", units.front(), units.back());
}

} // namespace

void runSplitStages(plan::Plan &plan, Notes &) {
  PipelineStages stages = readStages(plan);
  if (stages.count == 1)
    return;
  SHARDC_CHECK(plan.roles.size() == 1, "a plan is split into stages once");
  plan::Role whole = std::move(plan.roles.front());
  std::vector<CutBody> bodies;
  for (plan::Segment &segment : whole.segments)
    if (segment.body) {
      StageCut cut(whole, segment, stages);
      bodies.push_back({segment, std::move(cut)});
    }
  plan.roles.assign(static_cast<size_t>(stages.count), {});
  for (int32_t stage = 0; stage < stages.count; ++stage) {
    plan::Role &role = plan.roles[static_cast<size_t>(stage)];
    role.name = fmt::format("stage.{}", stage);
    role.why = describe(plan, stages, stage);
    role.where = {ranksOf(plan, stage)};
    role.cells = whole.cells;
    StageBuilder builder(plan, role, stage, static_cast<int32_t>(stages.count));
    for (const CutBody &body : bodies) {
      if (body.segment.kind == SegmentKind::Train)
        builder.addTraining(body);
      else
        builder.addEvaluation(body);
    }
    role.program = builder.programLike(whole, whole.program);
    dropUnusedCells(role);
  }
}

} // namespace shardc::passes
