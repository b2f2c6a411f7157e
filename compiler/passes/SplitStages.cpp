// Splits the single role of a logical plan into one role for each pipeline stage. A stage has the
// layers that the job assigns to it, in one or several chunks. Values that the next chunk needs are
// sent as soon as they are computed, and received during a pass before the one that reads them.
// Forward and backward pass are separate segments; values that the backward pass needs from the
// forward pass are kept in rings with one slot for each microbatch in flight. If backward passes of
// the last chunk of the model directly follow their forward passes, both are one segment there. A
// parameter that two stages use has a copy on each. If microbatches overlap, one stage is cut too.
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "compiler/model/ScheduleFile.h"
#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/StageCut.h"
#include "compiler/passes/StageSchedule.h"
#include "compiler/passes/StageSegment.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Pred;
using plan::Segment;
using plan::SegmentKind;

/// A body of the whole model, and how it is split.
struct CutBody {
  const Segment &segment;
  StageCut cut;
};

/// Creates the segments of one stage for a body.
class StageBuilder {
public:
  StageBuilder(plan::Plan &plan, plan::Role &role, int32_t stage, const CutBody &body,
               const StageSchedule &schedule)
      : plan_(plan), role_(role), stage_(stage), body_(body), schedule_(schedule),
        isEval_(body.segment.kind == SegmentKind::Eval), storage_(body.segment.values.size()),
        cellOf_(body.segment.values.size(), kNone) {}

  /// Adds the segments to the role. Returns the index of each part's segment.
  std::map<StagePart, uint32_t> run() {
    // Parts that read stored values are created first, so that the others know what to store:
    // backward before forward, later chunks before earlier ones.
    const std::vector<StagePart> &parts = schedule_.parts(stage_);
    for (auto part = parts.rbegin(); part != parts.rend(); ++part)
      write(*part);
    std::map<StagePart, uint32_t> segmentOf;
    for (StagePart part : parts) {
      segmentOf[part] = static_cast<uint32_t>(role_.segments.size());
      StageSegment &done = done_.at(part);
      done.orderAsBody();
      takeCountsFirst(done.segment);
      plan::dropUnusedValues(done.segment);
      role_.segments.push_back(std::move(done.segment));
    }
    for (const auto &[cell, kept] : kept_)
      role_.cells[cell].slots = schedule_.slotsFor(kept.from, kept.readers);
    return segmentOf;
  }

private:
  const Placement &placement() const { return schedule_.placement(); }
  const std::vector<int32_t> &chunks() const { return placement().chunksOf(stage_); }
  /// The stage that makes the operand.
  int32_t producerOf(Handover of) const { return placement().stageOf(of.maker()); }

  /// Writes one segment of the stage: receives what it needs, runs its ops, passes on what
  /// neighbouring chunks need, and keeps values for its later segments.
  void write(StagePart part) {
    int32_t chunk = part.chunk;
    SegmentWriter writer(plan_, body_.segment, body_.cut, stage_,
                         {part.kind, chunk, chunk == chunks().front(), chunk == chunks().back(),
                          schedule_.runsOf(part)},
                         storage_);
    std::map<uint32_t, ValueId> taken; // by cell
    std::vector<Arrived> arrived;
    receiveAhead(writer, part, When::BeforeOwn, taken, arrived);
    if (std::optional<Handover> of = schedule_.operandOf(part))
      of->isGradient ? takeGradients(writer, part, *of, taken)
                     : takeInputs(writer, part, *of, taken);
    receiveAhead(writer, part, When::Inputs, taken, arrived);
    // A backward pass reads values from cells into which values are received, so it receives only
    // at its end.
    if (hasForward(part.kind))
      receiveAhead(writer, part, When::Gradients, taken, arrived);
    writer.addOps();
    if (!hasForward(part.kind))
      receiveAhead(writer, part, When::Gradients, taken, arrived);
    if (hasForward(part.kind) && !placement().isLast(chunk))
      passOn(writer, {false, chunk + 1});
    if (!isEval_ && hasInputs(part.kind) && chunk > 0)
      passOn(writer, {true, chunk - 1});
    const std::vector<uint8_t> isMade = writer.madeValues();
    for (auto &[reader, segment] : done_)
      keep(writer, isMade, part, segment, reader);
    done_.emplace(part, writer.take(kindOf(part), nameOf(part)));
  }

  /// Sends the values to the stage that takes them. On this stage, they wait in cells.
  void passOn(SegmentWriter &writer, Handover of) {
    const std::vector<ValueId> &values = takenBy(of);
    if (int32_t to = placement().stageOf(of.chunk); to != stage_)
      return writer.send(values, to, !of.isGradient);
    for (size_t k = 0; k < values.size(); ++k) {
      ValueId next = writer.newValue(values[k], ".next");
      writer.copy(values[k], next);
      writer.leaveInCell(next, inbox(of, k));
    }
  }

  /// The type of rows refers to their counts, so these must be declared first.
  static void takeCountsFirst(Segment &segment) {
    std::vector<uint8_t> isCounts(segment.values.size());
    for (const plan::Value &value : segment.values)
      if (value.counts != kNone)
        isCounts[value.counts] = 1;
    std::stable_partition(
        segment.ins.begin(), segment.ins.end(),
        [&](const plan::Segment::Boundary &in) { return isCounts[in.value] != 0; });
  }

  SegmentKind kindOf(StagePart part) const {
    if (part.kind == PassKind::Both) // with several chunks, it is one of many segments
      return chunks().size() == 1 ? SegmentKind::Train : SegmentKind::Steady;
    return !hasForward(part.kind) ? SegmentKind::Backward
           : isEval_              ? SegmentKind::Eval
                                  : SegmentKind::Forward;
  }

  std::string nameOf(StagePart part) const {
    std::string name(plan::segmentKindInfo(kindOf(part)).word);
    if (part.kind == PassKind::Weights)
      name = "weights";
    return chunks().size() == 1 ? name
                                : fmt::format("{}.{}", name, placement().indexOn(part.chunk));
  }

  const std::vector<ValueId> &takenBy(Handover of) const {
    return of.isGradient ? body_.cut.gradients(of.chunk) : body_.cut.inputs(of.chunk);
  }

  uint32_t addBuffer(const std::string &name, const plan::Type &type, plan::Purpose purpose) {
    return plan::addCell(role_, (isEval_ ? "eval." : "") + name, plan::CellKind::Buffer, type,
                         plan::Arena::Work, purpose);
  }

  /// The cell in which the k-th value of the operand waits for the pass that takes it; kNone if it
  /// is received only then.
  uint32_t inbox(Handover of, size_t k) {
    int32_t slots = schedule_.slotsOfWaiting(of);
    if (slots == 0)
      return kNone;
    auto [at, isNew] = inboxes_.try_emplace({of, k}, kNone);
    if (isNew) {
      const plan::Value &value = body_.segment.values[takenBy(of)[k]];
      at->second = addBuffer("in." + value.name, value.type, plan::Purpose::Activations);
      role_.cells[at->second].slots = slots;
    }
    return at->second;
  }

  /// The first pass of a stage receives its own input; later passes find it in a cell. They copy
  /// it, so that the next input may arrive at once.
  void takeInputs(SegmentWriter &writer, StagePart part, Handover of,
                  std::map<uint32_t, ValueId> &taken) {
    const std::vector<ValueId> &inputs = takenBy(of);
    for (size_t k = 0; k < inputs.size(); ++k) {
      uint32_t cell = inbox(of, k);
      ValueId now = kNone;
      if (cell != kNone) {
        now = writer.newValue(inputs[k], ".waiting");
        writer.takeFromCell(now, cell);
      }
      if (schedule_.receivesOwn(stage_, part))
        now = writer.receive(
            inputs[k], ".in", producerOf(of), true,
            cell == kNone ? Pred::Always : schedule_.runsOf(part).like(Pred::First), now);
      writer.copy(now, inputs[k]);
      taken[cell] = now;
    }
  }

  void takeGradients(SegmentWriter &writer, StagePart part, Handover of,
                     std::map<uint32_t, ValueId> &taken) {
    const std::vector<ValueId> &gradients = takenBy(of);
    for (size_t k = 0; k < gradients.size(); ++k) {
      uint32_t cell = inbox(of, k);
      taken[cell] = gradients[k];
      if (part.kind == PassKind::Inputs) { // the part with weight gradients may read it later
        taken[cell] = writer.newValue(gradients[k], ".waiting");
        writer.copy(taken[cell], gradients[k]);
      }
      writer.takeFromCell(taken[cell], cell);
    }
  }

  enum class When : uint8_t { BeforeOwn, Inputs, Gradients };
  /// The latest content of a cell, of the microbatch `shift` after the current one.
  struct Arrived {
    uint32_t cell;
    int64_t shift;
    ValueId value;
  };

  /// Receives inputs or gradients of later passes into their cells. `taken`: by cell, the value
  /// that this pass reads from it. The receives before the pass's own input leave their values in
  /// `arrived`, to which later ones may add.
  void receiveAhead(SegmentWriter &writer, StagePart by, When when,
                    const std::map<uint32_t, ValueId> &taken, std::vector<Arrived> &arrived) {
    for (const Receive &receive : schedule_.receives(stage_, by)) {
      bool isForward = !receive.of.isGradient;
      When now = receive.isBeforeOwn ? When::BeforeOwn : isForward ? When::Inputs : When::Gradients;
      if (now != when)
        continue;
      const std::vector<ValueId> &values = takenBy(receive.of);
      for (size_t k = 0; k < values.size(); ++k) {
        uint32_t cell = inbox(receive.of, k);
        auto at = std::ranges::find_if(arrived, [&](const Arrived &each) {
          return each.cell == cell && each.shift == receive.shift;
        });
        if (at == arrived.end()) {
          at = arrived.insert(at, {cell, receive.shift, kNone});
          auto own = taken.find(cell);
          if (own != taken.end() && !role_.cells[cell].isRing()) {
            at->value = own->second;
          } else if (receive.when != std::vector{Pred::Always}) {
            at->value = writer.newValue(values[k], ".waiting");
            writer.takeFromCell(at->value, cell, receive.shift);
          }
        }
        for (const Pred &pred : receive.when)
          at->value = writer.receive(values[k], ".next", producerOf(receive.of), isForward, pred,
                                     at->value);
      }
    }
    if (when == When::BeforeOwn)
      return;
    for (const Arrived &each : arrived)
      writer.leaveInCell(each.value, each.cell, each.shift);
    arrived.clear();
  }

  /// The cell that stores the value if it is the step state; kNone for other values. Later passes
  /// read the loss scale there, regardless of the losses that were added since.
  uint32_t cellOfState(ValueId value) const {
    if (body_.segment.values[value].purpose != plan::Purpose::Step)
      return kNone;
    auto out = std::ranges::find(body_.segment.outs, value, &plan::Segment::Boundary::value);
    return out == body_.segment.outs.end() ? kNone : out->cell;
  }

  /// Gives `reader`, a later pass of the same chunk, views of the values that an earlier pass keeps
  /// in cells, so that they need not be copied.
  void viewAgain(const std::vector<uint8_t> &isMade, StageSegment &of) {
    Segment &reader = of.segment;
    std::vector<uint8_t> isHere = madeValues(reader);
    std::vector<Op> views; // the last one first
    auto view = [&](ValueId local) {
      ValueId value = of.bodyOf[local];
      isHere.resize(of.bodyOf.size());
      if (value == kNone || isHere[local] != 0 || isMade[value] == 0)
        return;
      const Op &producer = body_.segment.ops[body_.segment.values[value].def];
      if (producer.kind != plan::OpKind::View)
        return;
      isHere[local] = 1;
      views.push_back(producer);
      for (ValueId &viewed : views.back().operands)
        viewed = of.use(body_.segment, viewed);
      views.back().results = {local};
      views.back().phase = plan::segmentKindInfo(reader.kind).phase;
    };
    for (const Op &op : reader.ops)
      std::ranges::for_each(op.operands, view);
    for (size_t i = 0; i < views.size(); ++i) {
      ValueId viewed = views[i].operands[0];
      view(viewed);
    }
    if (views.empty())
      return;
    reader.ops.insert(reader.ops.begin(), views.rbegin(), views.rend());
    plan::renumber(reader);
  }

  /// Keeps the values that one pass makes in cells for a later pass.
  void keep(SegmentWriter &writer, const std::vector<uint8_t> &isMade, StagePart part,
            StageSegment &of, StagePart by) {
    viewAgain(isMade, of);
    Segment &reader = of.segment;
    std::vector<uint8_t> isKnown = madeValues(reader);
    for (const plan::Segment::Boundary &in : reader.ins)
      isKnown[in.value] = 1;
    auto read = [&](ValueId local) {
      ValueId value = of.bodyOf[local];
      if (value == kNone || isKnown[local] != 0 || isMade[value] == 0)
        return;
      isKnown[local] = 1;
      if (uint32_t state = cellOfState(value); state != kNone) {
        reader.ins.push_back({local, state});
        return;
      }
      uint32_t &cell = cellOf_[value];
      if (cell == kNone) {
        const plan::Value &kept = body_.segment.values[value];
        plan::Purpose purpose =
            kept.purpose == plan::Purpose::Grads ? plan::Purpose::Activations : kept.purpose;
        cell = addBuffer("keep." + kept.name, kept.type, purpose);
        writer.leaveInCell(value, cell);
      }
      Kept &kept = kept_[cell];
      kept.from = part;
      kept.readers.insert(by);
      reader.ins.push_back({local, cell});
    };
    auto readWithCounts = [&](ValueId local) {
      if (ValueId counts = reader.values[local].counts; counts != kNone)
        read(counts); // the row counts that the type refers to
      read(local);
    };
    for (const Op &op : reader.ops) {
      std::ranges::for_each(op.operands, readWithCounts);
      for (const plan::Tie &tie : op.ties)
        read(tie.value);
    }
  }

  /// Which passes make and read the content of a cell. All readers share its slots.
  struct Kept {
    StagePart from;
    std::set<StagePart> readers;
  };

  plan::Plan &plan_;
  plan::Role &role_;
  int32_t stage_;
  const CutBody &body_;
  const StageSchedule &schedule_;
  bool isEval_;
  std::map<std::pair<Handover, size_t>, uint32_t> inboxes_; ///< by position of the value
  std::map<uint32_t, Kept> kept_;                           ///< by cell
  std::vector<plan::Value> storage_;                        ///< reused by the segment writers
  std::vector<uint32_t> cellOf_; ///< by value of the body: the cell in which it is kept
  std::map<StagePart, StageSegment> done_;
};

bool isGreedy(const plan::Plan &plan) {
  return plan.job.model.pipelineSchedule == plan::Job::PipelineSchedule::ZeroBubbleGreedy;
}

/// The predicted seconds of each part if chunks have different numbers of layers, or if the
/// schedule needs times; otherwise empty.
model::SecondsOf secondsOfParts(const plan::Plan &plan, const PipelineStages &stages,
                                const CutBody &body) {
  struct Seconds {
    int64_t layers = 0;
    std::array<double, model::kPassResults.size()> of{};
  };
  std::vector<Seconds> chunks(static_cast<size_t>(stages.placement.chunks()));
  for (size_t unit = 0; unit < plan.units.size(); ++unit)
    if (plan.units[unit].kind == plan::UnitKind::Layer)
      ++chunks[static_cast<size_t>(stages.ofUnit[unit])].layers;
  if (!isGreedy(plan) && std::ranges::all_of(chunks, [&](const Seconds &each) {
        return each.layers == chunks.front().layers;
      }))
    return {};
  const predict::Device device = predict::deviceOf(plan);
  for (size_t i = 0; i < body.segment.ops.size(); ++i) {
    const Op &op = body.segment.ops[i];
    int32_t chunk = body.cut.stageOfOp(i);
    if (chunk == kEveryStage || plan::opInfo(op).traits == plan::OpTraits::Alias)
      continue;
    chunks[static_cast<size_t>(chunk)].of[static_cast<size_t>(body.cut.resultOf(i))] +=
        predict::timeOf(device, plan, body.segment, op);
  }
  return [chunks](const StagePart &part) {
    constexpr double kLeast = 1e-9; // so that no two passes of a stage end at once
    double seconds = kLeast;
    for (PassResult result : model::kPassResults)
      if (makes(part.kind, result))
        seconds += chunks[static_cast<size_t>(part.chunk)].of[static_cast<size_t>(result)];
    return seconds;
  };
}

/// Lists the order in the job if it needs times.
StageSchedule scheduleOf(plan::Plan &plan, const PipelineStages &stages, const CutBody &body) {
  PipelineShape shape = pipelineShapeOf(plan.job);
  if (body.segment.kind == SegmentKind::Eval) {
    shape.microbatches = plan.job.derived.evalMicrobatches;
    return StageSchedule(model::forwardOnly(shape));
  }
  const model::SecondsOf seconds = secondsOfParts(plan, stages, body);
  if (!isGreedy(plan) || !plan.job.derived.passOrder.empty())
    return StageSchedule(passOrderOf(plan.job), seconds);
  constexpr double kGain = 0.999; // orders that repeat come first, since their programs are short
  std::optional<StageSchedule> best;
  int64_t limit = plan.job.model.pipelineActivationLimit;
  for (const PassOrder &order : model::zeroBubbleGreedy(shape, limit, seconds))
    if (StageSchedule found(order, seconds); !best || found.seconds() < kGain * best->seconds()) {
      best = std::move(found);
      plan.job.derived.passOrder = model::writeSchedule(order, '|');
    }
  return *std::move(best);
}

/// Copies the program of the whole model, with the launches of its bodies replaced by those of a
/// stage.
std::vector<plan::ProgramNode>
programLike(const plan::Role &whole, const std::vector<plan::ProgramNode> &nodes,
            const std::map<uint32_t, std::vector<plan::ProgramNode>> &runsOf) {
  std::vector<plan::ProgramNode> own;
  for (const plan::ProgramNode &node : nodes) {
    if (node.segment != kNone) {
      std::ranges::copy(runsOf.at(node.segment), std::back_inserter(own));
      continue;
    }
    plan::ProgramNode copy = node;
    copy.children = programLike(whole, node.children, runsOf);
    own.push_back(std::move(copy));
  }
  return own;
}

/// The ranks of a stage: those with its coordinate on the axis of stages.
plan::AxisRange ranksOf(const plan::Plan &plan, int32_t stage) {
  int16_t stages = plan::groupOfKind(plan, plan::GroupKind::Stages);
  SHARDC_CHECK(stages >= 0, "the plan has no group of the kind 'stages'");
  const plan::Group &group = plan.groups[static_cast<size_t>(stages)];
  SHARDC_CHECK(group.axes.size() == 1, "stages lie along one axis");
  return {group.axes.front(), stage, stage + 1};
}

/// Whether a plan of one stage has a training body whose forward and backward passes share cells.
bool overlapsMicrobatches(const plan::Plan &plan) {
  return plan.job.model.overlapMoeExpertParallelComm && plan.job.derived.numMicrobatches > 1 &&
         std::ranges::any_of(plan.roles.front().segments, [](const Segment &segment) {
           return segment.body && segment.kind == SegmentKind::Train;
         });
}

/// Describes the stage by the names of the units in each of its chunks.
std::string describe(const plan::Plan &plan, const PipelineStages &stages, int32_t stage) {
  std::string text;
  for (int32_t chunk : stages.placement.chunksOf(stage)) {
    std::vector<std::string> units;
    for (size_t unit = 0; unit < plan.units.size(); ++unit)
      if (stages.ofUnit[unit] == chunk)
        units.push_back(plan.units[unit].name);
    text += text.empty() ? "it has " : ", and ";
    text +=
        units.size() == 1 ? units.front() : fmt::format("{} to {}", units.front(), units.back());
  }
  return text;
}

} // namespace

/// Cuts each body at the stage boundaries, then builds one role per stage: its segments, and a
/// program that runs them in the order of the schedule.
void runSplitStages(plan::Plan &plan, Notes &) {
  PipelineStages stages = readStages(plan);
  if (stages.count == 1 && !overlapsMicrobatches(plan))
    return;
  SHARDC_CHECK(plan.roles.size() == 1, "a plan is split into stages once");
  plan::Role whole = std::move(plan.roles.front());
  struct Body {
    uint32_t index;
    CutBody cut;
    StageSchedule schedule;
  };
  std::vector<Body> bodies;
  for (uint32_t s = 0; s < whole.segments.size(); ++s) {
    plan::Segment &segment = whole.segments[s];
    if (!segment.body)
      continue;
    CutBody cut{segment, StageCut(whole, segment, stages)};
    StageSchedule schedule = scheduleOf(plan, stages, cut);
    bodies.push_back({s, std::move(cut), std::move(schedule)});
  }
  // Every stage begins with all cells of the whole role, and drops those that it does not use.
  plan.roles.assign(static_cast<size_t>(stages.count), {});
  for (int32_t stage = 0; stage < stages.count; ++stage) {
    plan::Role &role = plan.roles[static_cast<size_t>(stage)];
    role.name = whole.name, role.why = whole.why, role.where = whole.where;
    if (stages.count > 1) {
      role.name = fmt::format("stage.{}", stage);
      role.why = describe(plan, stages, stage);
      role.where = {ranksOf(plan, stage)};
    }
    role.cells = whole.cells;
    std::map<uint32_t, std::vector<plan::ProgramNode>> runsOf;
    for (const Body &body : bodies) {
      std::map<StagePart, uint32_t> segments =
          StageBuilder(plan, role, stage, body.cut, body.schedule).run();
      runsOf[body.index] = body.schedule.program(stage, segments);
    }
    role.program = programLike(whole, whole.program, runsOf);
    dropUnusedCells(role);
  }
}

} // namespace shardc::passes
