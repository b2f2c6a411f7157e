// Checks the steps of training: each step begins, adds its losses, ends, and updates each block,
// once each. VerifySegmentSums.cpp checks the values that are added and updated. This file follows
// the program of each role for at least two steps, until no mark changes, with one mark for each
// value and cell.
#include "runtime/verify/VerifySums.h"

#include <algorithm>

#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Summary.h"
#include "runtime/verify/VerifySegmentSums.h"
#include "runtime/verify/VerifyWalk.h"

namespace shardc::plan::verifier {
namespace {

/// Limit of steps and microbatches that are followed until their marks repeat. Values move along a
/// short chain of cells, and each iteration changes at least one of them.
constexpr int64_t kIterationsMax = 64;
/// Steps over which roles are compared with each other.
constexpr int kStepsCompared = 2;

/// True if a run of the segment does more than change marks.
bool actsOnStep(const Segment &segment) {
  return std::ranges::any_of(segment.ops, [](const Op &op) {
    SumRole sum = opInfo(op).sum;
    return opInfo(op).isOptimizer() || sum == SumRole::FinishesStep || sum == SumRole::FinishesEval;
  });
}

bool hasSum(const Segment &segment, SumRole sum) {
  return std::ranges::any_of(segment.ops, [&](const Op &op) { return opInfo(op).sum == sum; });
}

/// The value number of what a load stores in a cell.
uint64_t numberOf(CellKind kind, uint32_t which) {
  return mixed(static_cast<uint64_t>(kind), which);
}

/// The base of the value numbers that skipped iterations produce.
uint64_t numberOfSkipped(uint32_t role) { return mixed(uint64_t{1} << 32, role); }

using Cells = std::vector<Held>;

class SumCheck : ProgramWalk<SumCheck, Cells> {
  friend ProgramWalk;

public:
  /// Checks a part of the role's ranks. `isCompared`: other roles update the same blocks.
  SumCheck(Inspection &inspection, uint32_t roleIndex, const Role &part, bool isCompared)
      : ProgramWalk(inspection, roleIndex), blockOf_(inspection.loaded(roleIndex).blocks),
        ops_(makeSegmentSums(inspection, roleIndex, part, isCompared)), step_(ops_->step),
        runs_(role_.segments.size()) {
    for (const Segment &segment : role_.segments) {
      addsEvalLosses_.push_back(hasSum(segment, SumRole::AddsEvalLosses));
      evaluates_ = evaluates_ || hasSum(segment, SumRole::AddsEvalLosses) ||
                   hasSum(segment, SumRole::FinishesEval);
    }
  }

  /// Walks the program and returns the operands of all optimizer ops, which are then compared
  /// between roles.
  std::vector<Update> run() {
    if (!hasStepOps())
      return {};
    stepCell_ = findCell(role_, CellKind::Step);
    Cells cells(role_.cells.size());
    for (uint32_t c = 0; c < cells.size(); ++c)
      cells[c] = loaded(c);
    walkMicrobatches(role_.program, cells);
    needSteps();
    return std::move(ops_->updates);
  }

private:
  /// Whether the role must have steps: it updates blocks, has frozen blocks, or saves checkpoints.
  bool hasStepOps() const {
    bool hasFrozen = std::ranges::any_of(blockOf_, [&](const Block *block) {
      return block != nullptr && !plan_.classOf(*block).isTrained;
    });
    return updatesBlocks(role_) || hasFrozen ||
           (!plan_.job.checkpoint.save.empty() && !plan_.blocks.empty());
  }

  /// The state of a cell after a load, or its initial state if the load does not fill it.
  Held loaded(uint32_t c) const {
    const Cell &cell = role_.cells[c];
    bool isBuffer = cell.kind == CellKind::Buffer; // other kinds mean the same in all roles
    Held held{{}, numberOf(cell.kind, isBuffer ? c : static_cast<uint32_t>(cell.of))};
    if (blockOf_[c] != nullptr)
      held.mark = ops_->markOfState(static_cast<int32_t>(blockOf_[c] - plan_.blocks.data()));
    if (c == stepCell_)
      held.mark.phase = Phase::Ended;
    return held;
  }

  // ---- the program ----

  bool isStopped() const { return report_.isFull(); }

  void join(Cells &into, const Cells &from) {
    for (size_t c = 0; c < into.size(); ++c) {
      if (into[c].number != from[c].number)
        into[c].number = mixed(into[c].number, from[c].number);
      into[c].mark = joined(ops_->sets, into[c].mark, from[c].mark);
    }
  }

  /// After 'start', the state is either the one that 'start' leaves or the one after a load.
  void start(uint32_t segment, Cells &cells) {
    Cells begun = cells;
    apply(segment, Variant::Only, begun);
    join(cells, begun);
  }

  /// Follows the `every` even if the loop has fewer steps, since a run may only evaluate.
  void runEvery(const ProgramNode &node, Cells &cells) {
    bool before = std::exchange(step_.isSometimes, step_.isSometimes || node.count > 1);
    Cells with = cells;
    evaluate(node, with);
    step_.isSometimes = before;
    if (node.count > 1)
      join(cells, with);
    else
      cells = std::move(with);
  }

  /// In a role with evaluations, an `every` is an evaluation: the host reads its loss when it ends.
  void evaluate(const ProgramNode &node, Cells &cells) {
    step_.evalMicrobatches = countOf(role_, addsEvalLosses_, node);
    walkMicrobatches(node.children, cells);
    if (report_.size() != 0 || !evaluates_)
      return;
    Phase ended = stepCell_ == kNone ? Phase::None
                                     : std::exchange(cells[stepCell_].mark.evaluation, Phase::None);
    if (ended != Phase::Ended)
      report_.add(finding::NoEvaluation, {roleIndex_, firstRunOf(node), kNone}, node.count);
  }

  static uint32_t firstRunOf(const ProgramNode &node) {
    return node.children.empty() ? kNone : node.children.front().segment;
  }

  static bool isSame(const Cells &before, const Cells &after) {
    return std::ranges::equal(before, after, {}, &Held::mark, &Held::mark);
  }

  /// True if the next iteration starts from the state of this one, with microbatches that are later
  /// by a step. A cover may begin at a fixed microbatch. That is allowed if it lies before all
  /// microbatches that move, since it then has the same place in the next iteration.
  bool isSteady(const Cells &before, const Cells &after, const LoopIterations &turns) const {
    auto acts = [&](const ProgramNode &run) { return actsOnStep(role_.segments[run.segment]); };
    if (report_.size() != 0 || (!turns.isPlain() && std::ranges::any_of(turns.runs(), acts)))
      return false;
    if (turns.isPlain() && turn_ == kIterationsMax)
      return true;
    int64_t lastStaying = INT64_MIN, firstMoving = turns.earliest(turn_);
    for (auto c = static_cast<uint32_t>(before.size()); c-- > 0;) { // slots, which change, are last
      if (!turns.touches(c))
        continue;
      const Mark &own = before[c].mark, &next = after[turns.at(c, 1)].mark;
      if (!isMovedOn(own, next, turns.step()))
        return false;
      if (own.cover.kind != Cover::Some)
        continue;
      for (auto [from, to] :
           {std::pair(own.cover.begin, next.cover.begin), {own.cover.end, next.cover.end}})
        if (from == to)
          lastStaying = std::max(lastStaying, from);
        else
          firstMoving = std::min(firstMoving, from);
    }
    return turns.isPlain() || lastStaying < firstMoving;
  }

  /// The state after `left` further iterations that do the same. What these store gets numbers that
  /// no other role has. A plain loop needs no new numbers, since all roles have the same one.
  void skip(const Cells &before, Cells &cells, const LoopIterations &turns, int64_t left) {
    const Cells after = cells;
    for (uint32_t c = 0; c < cells.size(); ++c) {
      Held &held = cells[turns.at(c, 1 + left)] = after[turns.at(c, 1)];
      moveOn(before[c].mark.cover, held.mark.cover, left);
    }
    if (turns.isPlain() || !ops_->numbers.isOn())
      return;
    for (const ProgramNode &run : turns.runs()) {
      const Segment &segment = role_.segments[run.segment];
      Variant variant = tables_[run.segment].of(run.microbatch->at(turn_), counts_[run.segment]);
      ops_->numbers.addMeetings(segment, variant, static_cast<uint64_t>(left));
      for (const Segment::Boundary &out : segment.outs)
        for (uint32_t cell : rings_.slotsOf(out.cell))
          if (rings_.isSlot(cell) || !keepsCell(segment, out))
            cells[cell].number = mixed(numberOfSkipped(roleIndex_), ++skipped_);
    }
  }

  /// Whether the segment stores into the cell the value that it read from it, perhaps through ops
  /// that keep a value's number.
  static bool keepsCell(const Segment &segment, const Segment::Boundary &out) {
    ValueId value = out.value;
    for (const Op *op; (op = producerOf(segment, value)) != nullptr; value = op->operands[0])
      if (!ValueNumbers::passesOn(*op))
        return false;
    auto in = std::ranges::find(segment.ins, value, &Segment::Boundary::value);
    return in != segment.ins.end() && in->cell == out.cell;
  }

  /// A run that names no microbatch processes those that follow the microbatches of earlier runs.
  void runNode(const ProgramNode &node, Cells &cells) {
    ProgramWalk::runNode(node, cells);
    if (!node.microbatch && role_.segments[node.segment].body)
      runs_[node.segment] += node.count;
  }

  /// Walks the nodes of a step or an `every`, with microbatches counted from 0.
  void walkMicrobatches(const std::vector<ProgramNode> &nodes, Cells &cells) {
    std::vector<int64_t> before = std::exchange(runs_, std::vector<int64_t>(role_.segments.size()));
    walkAnew(nodes, cells);
    runs_ = std::move(before);
  }

  /// The number of microbatches in a step.
  static int64_t countOf(const Role &role, const std::vector<bool> &isTraining,
                         const ProgramNode &steps) {
    std::vector<int64_t> runs = runsOf(role, steps.children);
    int64_t most = 0;
    for (size_t s = 0; s < runs.size(); ++s)
      if (isTraining[s])
        most = std::max(most, role.segments[s].body ? runs[s] : std::min<int64_t>(runs[s], 1));
    return most;
  }

  void runSteps(const ProgramNode &loop, Cells &cells) {
    step_.steps = loop.count;
    step_.microbatches = countOf(role_, ops_->isTraining, loop);
    for (int64_t turn = 0; turn < std::min(loop.count, kIterationsMax) && !report_.isFull();
         ++turn) {
      // Gradients that the last step accumulated do not count in this one.
      Cells now = cells;
      for (Held &held : now)
        if (held.mark.cover.kind != Cover::None)
          held.mark.cover = {Cover::Old};
      std::ranges::fill(step_.updates, 0);
      ops_->numbers.beginStep();
      step_.isCompared = turn < kStepsCompared;
      step_.hasEnded = false;
      walkMicrobatches(loop.children, now);
      checkStepEnd(now);
      bool isSame = true;
      for (size_t c = 0; c < cells.size(); ++c)
        isSame = isSame && joined(ops_->sets, cells[c].mark, now[c].mark) == cells[c].mark;
      join(cells, now);
      if (isSame && (turn + 1 >= kStepsCompared || !ops_->numbers.isOn()))
        break;
    }
    step_.steps = 0;
  }

  /// Requires a loop of steps. Without one, a run would end at once without a message.
  void needSteps() {
    bool has = std::ranges::any_of(
        role_.program, [](const ProgramNode &node) { return node.kind == ProgramNode::Steps; });
    if (!has && report_.size() == 0)
      report_.add(finding::NoSteps, Spot{roleIndex_, kNone, kNone});
  }

  /// Checks that a step has done everything that it must do.
  void checkStepEnd(const Cells &cells) {
    if (report_.size() != 0)
      return;
    Spot where = stepCell_ == kNone ? Spot{roleIndex_, kNone, kNone}
                                    : spotOfCell(report_, roleIndex_, stepCell_);
    if (stepCell_ == kNone || !step_.hasEnded || cells[stepCell_].mark.phase != Phase::Ended) {
      report_.add(finding::NoStepBeginOrEnd, where);
      return;
    }
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      if (step_.updates[block] == 0 && report_.updates(roleIndex_, block))
        report_.addAbout(finding::BlockNotUpdated, where, plan_.blocks[block].name);
    checkTold(cells);
  }

  /// Checks that reported losses are summed over all ranks, since the host reads them on one rank.
  void checkTold(const Cells &cells) const {
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (auto apart = static_cast<Axes>(cells[c].mark.varies | cells[c].mark.due);
          apart != 0 && isReportedOnly(role_.cells[c].kind))
        addCell(finding::ReportedUnsummed, c, namesOf(plan_, apart));
  }

  // ---- cells and segments ----

  void apply(uint32_t segment, const Variant &variant, Cells &cells) {
    step_.microbatch = microbatch_ + runs_[segment];
    leave(segment, ops_->follow(segment, variant, takenBy(segment, cells)), cells);
  }

  Holds takenBy(uint32_t segment, const Cells &cells) const {
    Holds taken;
    taken.reserve(role_.segments[segment].ins.size());
    for (const Segment::Boundary &in : role_.segments[segment].ins)
      taken.push_back(cells[placeOf(in.cell)]);
    return taken;
  }

  void leave(uint32_t segment, const Holds &left, Cells &cells) const {
    for (size_t i = 0; i < left.size(); ++i)
      cells[placeOf(role_.segments[segment].outs[i].cell)] = left[i];
  }

  const std::vector<const Block *> &blockOf_; ///< by cell, if a load stores its state
  uint32_t stepCell_ = kNone;
  std::unique_ptr<SegmentSums> ops_;
  StepState &step_;
  std::vector<int64_t> runs_;        ///< runs so far that name no microbatch, by segment
  std::vector<bool> addsEvalLosses_; ///< of each segment
  bool evaluates_ = false;           ///< the role has evaluations
  uint64_t skipped_ = 0;
};

/// The operands of the optimizers of all roles; empty after a finding.
std::vector<PartUpdates> followRoles(Inspection &inspection) {
  std::vector<PartUpdates> updates;
  const bool areCompared = haveUpdatesInCommon(inspection.plan());
  for (uint32_t r = 0; r < inspection.plan().roles.size(); ++r)
    for (Role &part : partsOfRole(inspection, r)) {
      if (inspection.size() != 0)
        return {};
      std::vector<Update> taken = SumCheck(inspection, r, part, areCompared).run();
      updates.push_back({r, std::move(part), std::move(taken)});
    }
  return updates;
}

} // namespace

void checkSums(Inspection &inspection) {
  compareRoles(inspection, followRoles(inspection));
  if (inspection.size() != 0 && !inspection.followsAllIterations()) {
    // Roles may be equal if the skipped iterations are followed too.
    inspection.forget();
    inspection.setIterations(Iterations::All);
    compareRoles(inspection, followRoles(inspection));
  }
  if (inspection.size() != 0)
    return;
  checkNorms(inspection);
  checkScales(inspection);
}

} // namespace shardc::plan::verifier
