// Checks the steps of training. The gradient that an optimizer takes must be the sum of the
// contributions of all microbatches and of all ranks that share the block, each once. State that
// ranks share must change in the same way on all of them. Each step begins, adds its losses, ends,
// and updates each block, once each. Follows the program of each role for two steps, and until no
// mark changes, with one mark for each value and cell.
#include "runtime/verify/VerifySums.h"

#include <algorithm>
#include <set>

#include "runtime/plan/HostCells.h"
#include "runtime/plan/Summary.h"
#include "runtime/verify/VerifyContents.h"
#include "runtime/verify/VerifyRings.h"
#include "runtime/verify/VerifySumNumbers.h"

namespace shardc::plan::verifier {
namespace {

/// Steps and microbatches that are followed until their marks repeat: each turn changes one of a
/// few in a row of cells at least.
constexpr int64_t kTurnsMax = 64;
/// Steps in which roles are compared with each other.
constexpr int kStepsCompared = 2;
/// What it takes to find the marks of an op, in the visits that are counted.
constexpr uint64_t kVisitsOfMark = 4;

/// Of what a load has left in a cell.
uint64_t numberOf(CellKind kind, uint32_t which) {
  return mixed(static_cast<uint64_t>(kind), which);
}

/// A mark, and a number: equal where roles compute the same from the same.
struct Held {
  Mark mark;
  uint64_t number = 0;
  bool operator==(const Held &) const = default;
};

class SumCheck {
public:
  /// Of a part of the role's ranks.
  SumCheck(Inspection &inspection, uint32_t roleIndex, const Role &part)
      : report_(inspection), plan_(inspection.plan()), roleIndex_(roleIndex),
        role_(plan_.roles[roleIndex]), part_(part), allAxes_(axesOf(plan_)),
        dataAxes_(axesOf(plan_, plan_.dataGroup)),
        blockOf_(inspection.blocksInCheckpoint(roleIndex)), isTraining_(role_.segments.size()),
        hasState_(plan_.blocks.size()), updates_(plan_.blocks.size()), splits_(inspection),
        stages_(stagesOf(inspection, roleIndex, part)), numbers_(plan_, part),
        rings_(inspection.ringsOf(roleIndex)), tables_(inspection.variantTablesOf(roleIndex)) {
    findTraining();
    for (const Block *block : blockOf_)
      if (block != nullptr)
        hasState_[static_cast<size_t>(block - plan_.blocks.data())] = true;
  }

  /// What optimizers take, for comparisons between roles.
  std::vector<Update> run() {
    if (!hasStepOps())
      return {};
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (role_.cells[c].kind == CellKind::Step)
        stepCell_ = c;
    std::vector<Held> cells(role_.cells.size());
    for (uint32_t c = 0; c < cells.size(); ++c)
      cells[c] = loaded(c);
    walkAnew(role_.program, cells);
    needSteps();
    return std::move(taken_);
  }

private:
  Scope scope(uint32_t segment) const {
    return {report_, role_, role_.segments[segment], roleIndex_, segment};
  }
  bool isSharded(int32_t block) const {
    const Block &each = plan_.blocks[static_cast<size_t>(block)];
    return each.stateShard < each.numel;
  }
  /// Axes over which ranks hold other parts of the block's state.
  Axes partsOf(int32_t block) const {
    return isSharded(block) ? axesOf(plan_, plan_.blocks[static_cast<size_t>(block)].stateGroup)
                            : Axes{0};
  }

  /// The same of a value that is a part of the block.
  Axes heldBy(int32_t block, ValueId value) const {
    std::optional<BlockPart> part =
        partOf(plan_.blocks[static_cast<size_t>(block)], segment_->values[value].type.numel());
    return part ? axesOf(plan_, part->group) : partsOf(block);
  }

  /// Of this rank's part of the block's state.
  Mark markOfState(int32_t block) const {
    Mark mark;
    mark.varies = partsOf(block);
    mark.split = splits_.of(block);
    mark.block = block;
    return mark;
  }

  /// A role that updates blocks, or saves what it does.
  bool hasStepOps() const {
    return updatesBlocks(role_) || (!plan_.job.checkpoint.save.empty() && !plan_.blocks.empty());
  }

  /// Microbatches are what the segment that takes the ring is run for, and what segments compute
  /// for them that say so by their kind; where there is none, bodies.
  void findTraining() {
    bool hasRing = false;
    for (uint32_t s = 0; s < role_.segments.size(); ++s) {
      SegmentKind kind = role_.segments[s].kind;
      if (kind == SegmentKind::Forward || kind == SegmentKind::Backward ||
          kind == SegmentKind::Steady)
        hasRing = isTraining_[s] = true;
      for (const Segment::Boundary &in : role_.segments[s].ins)
        if (role_.cells[in.cell].kind == CellKind::Feed)
          hasRing = isTraining_[s] = true;
    }
    if (!hasRing)
      for (uint32_t s = 0; s < role_.segments.size(); ++s)
        isTraining_[s] = role_.segments[s].body;
  }

  /// What a load fills, or nothing.
  Held loaded(uint32_t c) const {
    const Cell &cell = role_.cells[c];
    bool isBuffer = cell.kind == CellKind::Buffer; // other kinds mean the same in all roles
    Held held{{}, numberOf(cell.kind, isBuffer ? c : static_cast<uint32_t>(cell.of))};
    if (blockOf_[c] != nullptr)
      held.mark = markOfState(static_cast<int32_t>(blockOf_[c] - plan_.blocks.data()));
    if (c == stepCell_)
      held.mark.phase = Phase::Ended;
    return held;
  }

  // ---- the program ----

  using Cells = std::vector<Held>;

  static void join(Cells &into, const Cells &from) {
    for (size_t c = 0; c < into.size(); ++c) {
      if (into[c].number != from[c].number)
        into[c].number = mixed(into[c].number, from[c].number);
      into[c].mark = joined(into[c].mark, from[c].mark);
    }
  }

  void walk(const std::vector<ProgramNode> &nodes, Cells &cells) {
    for (const ProgramNode &node : nodes) {
      if (report_.isFull())
        return;
      if (node.kind == ProgramNode::Start) {
        Cells begun = cells; // or a checkpoint is loaded
        apply(node.segment, Variant::Only, begun);
        join(cells, begun);
      } else if (node.kind == ProgramNode::Run) {
        run(node, cells);
      } else if (node.kind == ProgramNode::Loop) {
        int64_t before = turn_;
        for (turn_ = 0; turn_ < node.count && !report_.isFull(); ++turn_)
          walk(node.children, cells);
        turn_ = before;
      } else if (node.kind == ProgramNode::Steps) {
        runSteps(node, cells);
      } else if (node.count <= stepsOfLoop_) {
        bool before = std::exchange(isSometimes_, isSometimes_ || node.count > 1);
        Cells with = cells;
        walkAnew(node.children, with);
        isSometimes_ = before;
        if (node.count > 1)
          join(cells, with);
        else
          cells = std::move(with);
      }
    }
  }

  void run(const ProgramNode &node, Cells &cells) {
    uint32_t s = node.segment;
    if (node.microbatch)
      return applyFor(s, node.microbatch->at(turn_), counts_[s], cells);
    if (!role_.segments[s].body) {
      repeatStraight(s, node.count, cells);
      return;
    }
    int64_t begin = std::exchange(runs_[s], runs_[s] + node.count);
    for (int64_t i = 0; i < node.count && !report_.isFull(); ++i) {
      Cells before = cells;
      microbatch_ = begin + i;
      apply(s, tables_[s].of(i, node.count), cells);
      // What is left of the microbatches changes nothing but the numbers up to which sums go.
      bool isInside = i > 1 && i + 2 < node.count &&
                      tables_[s].of(i, node.count) == tables_[s].of(node.count - 2, node.count) &&
                      tables_[s].of(i - 1, node.count) == tables_[s].of(i, node.count);
      if (!isInside || touchesRings(rings_, role_.segments[s]))
        continue;
      bool isSteady = std::ranges::equal(
          before, cells, [](const Held &a, const Held &b) { return isMovedOn(a.mark, b.mark); });
      int64_t left = node.count - 2 - i;
      if (isSteady || i == kTurnsMax) {
        for (size_t c = 0; c < cells.size(); ++c)
          moveOn(before[c].mark.cover, cells[c].mark.cover, left);
        i += left;
      }
    }
    microbatch_ = 0;
  }

  void repeatStraight(uint32_t segment, int64_t count, Cells &cells) {
    for (int64_t i = 0; i < count && !report_.isFull(); ++i) {
      Cells before = cells;
      apply(segment, Variant::Only, cells);
      bool isSame = std::ranges::equal(cells, before, {}, &Held::mark, &Held::mark);
      if ((i > 0 && isSame) || i == kTurnsMax)
        return;
    }
  }

  /// Microbatch `microbatch` of `count`.
  void applyFor(uint32_t segment, int64_t microbatch, int64_t count, Cells &cells) {
    microbatch_ = microbatch;
    apply(segment, tables_[segment].of(microbatch, count), cells);
    microbatch_ = 0;
  }

  /// The nodes of a step or an `every`.
  void walkAnew(const std::vector<ProgramNode> &nodes, Cells &cells) {
    auto before = std::pair(std::move(counts_), std::move(runs_));
    counts_ = namedRuns(role_, nodes);
    runs_.assign(role_.segments.size(), 0);
    walk(nodes, cells);
    std::tie(counts_, runs_) = std::move(before);
  }

  /// How many microbatches a step has.
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
    stepsOfLoop_ = loop.count;
    microbatches_ = countOf(role_, isTraining_, loop);
    for (int64_t turn = 0; turn < std::min(loop.count, kTurnsMax) && !report_.isFull(); ++turn) {
      Cells now = cells;
      for (Held &held : now)
        if (held.mark.cover.kind != Cover::None)
          held.mark.cover = {Cover::Old};
      std::ranges::fill(updates_, 0);
      numbers_.beginStep();
      isCompared_ = turn < kStepsCompared;
      hasEndedStep_ = false;
      walkAnew(loop.children, now);
      checkStepEnd(now);
      bool isSame = true;
      for (size_t c = 0; c < cells.size(); ++c)
        isSame = isSame && joined(cells[c].mark, now[c].mark) == cells[c].mark;
      join(cells, now);
      if (isSame && (turn + 1 >= kStepsCompared || !numbers_.isOn()))
        break;
    }
    stepsOfLoop_ = 0;
  }

  /// Without a loop a run would end at once without a message.
  void needSteps() {
    bool has = std::ranges::any_of(
        role_.program, [](const ProgramNode &node) { return node.kind == ProgramNode::Steps; });
    if (!has && report_.size() == 0)
      report_.add(
          Rule::Step, Spot{roleIndex_, kNone, kNone},
          fmt::format(
              "role '{}' updates blocks or saves checkpoints, but its program has no 'steps'",
              role_.name));
  }

  /// All that a step has to do has been done by its end.
  void checkStepEnd(const Cells &cells) {
    if (report_.size() != 0)
      return;
    Spot where = stepCell_ == kNone ? Spot{roleIndex_, kNone, kNone}
                                    : spotOfCell(report_, roleIndex_, stepCell_);
    if (stepCell_ == kNone || !hasEndedStep_ || cells[stepCell_].mark.phase != Phase::Ended) {
      report_.add(Rule::Step, where,
                  fmt::format("role '{}' runs a step that does not begin with 'step.begin' and end "
                              "with 'step.finish'; each step needs both, once",
                              role_.name));
      return;
    }
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      if (updates_[block] == 0 && hasState_[block])
        report_.add(
            Rule::Step, where,
            fmt::format("role '{}' has a step that does not update block '{}'; each step needs to",
                        role_.name, plan_.blocks[block].name),
            plan_.blocks[block].name);
  }

  // ---- one run of a segment ----

  void apply(uint32_t s, Variant variant, Cells &cells) {
    segment_ = &role_.segments[s];
    segmentIndex_ = s, variant_ = variant;
    if (!report_.spend(cells.size() + segment_->values.size() +
                       segment_->ops.size() * kVisitsOfMark))
      return;
    marks_.assign(segment_->values.size(), {});
    numbers_.beginSegment(*segment_);
    shifts_ = &report_.shiftsOf(roleIndex_, s);
    int64_t moved = segment_->body ? microbatch_ : 0; // by which slots have changed places
    for (const Segment::Boundary &in : segment_->ins)
      setLiveIn(in, cells[rings_.at(in.cell, moved)]);
    for (uint32_t i = 0; i < segment_->ops.size(); ++i)
      followOp(i);
    std::vector<std::pair<uint32_t, Held>> left;
    for (const Segment::Boundary &out : segment_->outs)
      left.emplace_back(rings_.at(out.cell, moved), leftBy(out.value));
    for (const auto &[cell, held] : left)
      cells[cell] = held;
  }

  void setLiveIn(const Segment::Boundary &in, const Held &held) {
    marks_[in.value] = held.mark;
    numbers_.set(in.value, held.number);
  }

  Held leftBy(ValueId value) const { return {marks_[value], numbers_.of(value)}; }

  /// True if the value covers the complete step.
  bool isComplete(const Cover &cover) const {
    return cover == Cover{Cover::Some, 0, microbatches_};
  }
  /// From the microbatch under way to that of the value.
  int64_t shiftOf(ValueId value) const {
    return shifts_->empty() ? 0 : report_.shiftOf(roleIndex_, segmentIndex_, value);
  }
  /// The microbatch of what an op computes.
  int64_t microbatchOf(const Op &op) const {
    return op.results.empty() ? microbatch_ : microbatch_ + shiftOf(op.results[0]);
  }

  void followOp(uint32_t i) {
    const Op &op = segment_->ops[i];
    if (opInfo(op.kind).traits != OpTraits::Alias && !holds(op.pred, variant_)) {
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Else)
          set(op.results[tie.result], marks_[tie.value], tie.value);
      return;
    }
    if (opInfo(op.kind).traits == OpTraits::Collective)
      return followCollective(op);
    if (opInfo(op.kind).isOptimizer())
      return followOptimizer(i);
    Mark mark = markOf(i, op);
    for (ValueId result : op.results)
      marks_[result] = mark;
    numbers_.setResults(op, numbers_.ofOp(op));
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        addTo(op, op.results[tie.result], tie.value);
  }

  void set(ValueId result, const Mark &mark, ValueId from) {
    marks_[result] = mark;
    numbers_.set(result, numbers_.of(from));
  }

  /// What is added to a split parameter's gradient is of the same elements.
  void addTo(const Op &op, ValueId result, ValueId value) {
    Mark contribution = withSplits(marks_[result], marks_[value].split);
    marks_[result] = added(contribution, marks_[value], microbatchOf(op));
    numbers_.add(result, value);
  }

  Mark partOfPack(const Op &op, size_t k) {
    return splits_.packed(marks_[op.operands[k]], blockNamedBy(op), k);
  }

  static int32_t blockNamedBy(const Op &op) {
    return op.attrs.empty() ? -1 : static_cast<int32_t>(op.getInt(AttrKey::block));
  }

  Mark markOf(uint32_t i, const Op &op) {
    switch (opInfo(op.kind).sum) {
    case SumRole::Computes:
    case SumRole::Loads:
    case SumRole::ComputesShard:
      return fresh(op);
    case SumRole::Passes:
      return splits_.asBlock(marks_[op.operands[0]], blockNamedBy(op));
    case SumRole::Cuts:
      return splits_.viewed(marks_[op.operands[0]], op, segment_->values);
    case SumRole::Joins: {
      Mark mark = op.operands.empty() ? Mark{} : partOfPack(op, 0);
      for (size_t k = 0; k < op.operands.size(); ++k)
        mark = packed(mark, partOfPack(op, k));
      mark.block = blockNamedBy(op);
      return mark;
    }
    case SumRole::Constant:
      return {};
    case SumRole::Initial:
      return markOfState(blockNamedBy(op));
    case SumRole::Norm: {
      Mark mark;
      for (ValueId operand : op.operands)
        mark.varies |= marks_[operand].varies | marks_[operand].split;
      return mark;
    }
    case SumRole::ResetsStep: {
      Mark mark;
      mark.phase = Phase::Ended;
      return mark;
    }
    case SumRole::PacksStep:
    case SumRole::PacksEval: {
      Mark mark;
      mark.varies = mark.due = allAxes_;
      return mark;
    }
    case SumRole::BeginsStep:
      return begun(i, op);
    case SumRole::AddsLosses:
      return withLosses(i, op);
    case SumRole::FinishesStep:
      return finished(i, op);
    case SumRole::BeginsEval:
    case SumRole::AddsEvalLosses:
      return marks_[op.operands[0]];
    case SumRole::FinishesEval: {
      Mark mark = marks_[op.operands[0]];
      mark.varies |= marks_[op.operands[1]].varies;
      return mark;
    }
    case SumRole::Combines:
    case SumRole::Optimizes:
      break; // followed by themselves
    }
    return {};
  }

  /// A contribution of the microbatch, on each rank that computes it from something else.
  Mark fresh(const Op &op) const {
    Mark mark;
    for (ValueId operand : op.operands)
      mark.varies |= marks_[operand].varies | marks_[operand].split;
    SumRole role = opInfo(op.kind).sum;
    if (role == SumRole::Loads)
      mark.varies |= dataAxes_;
    if (opInfo(op.kind).takesIndex())
      mark.varies |= axesOf(plan_, op.group);
    mark.due = mark.varies | stages_.axes;
    if (role == SumRole::ComputesShard) // rows of the whole batch, for this rank's part
      mark.varies |= heldBy(static_cast<int32_t>(op.getInt(AttrKey::block)), op.results[0]);
    if (isTraining_[segmentIndex_])
      mark.cover = Cover::of(microbatchOf(op));
    return mark;
  }

  /// Along which ranks have other tokens: of other samples, or slices of the same.
  Axes tokenAxes() {
    if (!tokenAxes_) {
      tokenAxes_ = dataAxes_;
      for (const Role &role : plan_.roles)
        for (const Segment &segment : role.segments)
          for (const Op &op : segment.ops)
            if (op.kind == OpKind::BatchLoad)
              *tokenAxes_ |= axesOf(plan_, op.group);
    }
    return *tokenAxes_;
  }

  /// What another stage has computed of the same data.
  void followRecv(const Op &op) {
    Mark mark;
    mark.varies = mark.due = tokenAxes();
    mark.due |= stages_.axes;
    if (isTraining_[segmentIndex_])
      mark.cover = Cover::of(microbatchOf(op));
    marks_[op.results[0]] = mark;
    numbers_.set(op.results[0], numbers_.ofMeeting(op));
  }

  void followCollective(const Op &op) {
    if (op.kind == OpKind::Recv)
      return followRecv(op);
    if (op.kind == OpKind::Send)
      return;
    Axes over = axesOf(plan_, op.group);
    Mark mark = combined(op, splits_.asBlock(marks_[op.operands[0]], blockNamedBy(op)), over);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_)) {
        bool isAgain = contains(op, tie.value, op.operands[0]);
        mark = added(mark, marks_[tie.value], microbatchOf(op));
        if (isAgain)
          mark.cover = {Cover::Twice};
      }
    uint64_t number = numbers_.ofMeeting(op);
    for (ValueId result : op.results) {
      marks_[result] = mark;
      numbers_.set(result, number);
    }
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        numbers_.add(op.results[tie.result], tie.value);
  }

  static Mark combined(const Op &op, const Mark &operand, Axes over) {
    switch (collectiveKindOf(op)) {
    case CollectiveKind::AllGather:
      return gathered(operand, over);
    case CollectiveKind::ReduceScatter:
      return reduced(operand, over, op.getBool(AttrKey::average), /*isScattered=*/true);
    case CollectiveKind::AllReduce:
      return reduced(operand, over, op.getBool(AttrKey::average), /*isScattered=*/false);
    case CollectiveKind::Send:
    case CollectiveKind::Recv:
      return operand; // followed by themselves
    case CollectiveKind::AllReduceMax:
      return exchanged(operand, over, /*isApart=*/false);
    case CollectiveKind::AllToAll:
      return exchanged(operand, over, /*isApart=*/true);
    case CollectiveKind::Shift:
      return shifted(operand, over);
    }
    return operand;
  }

  /// True if a contribution of this microbatch is in the sum and in what is added to it.
  bool contains(const Op &op, ValueId sum, ValueId value) const {
    auto hasNew = [&](ValueId id) { return marks_[id].cover.has(microbatchOf(op)); };
    if (!hasNew(sum) || !hasNew(value))
      return false;
    std::set<uint32_t> ours = contributorsOf(report_, *segment_, variant_, sum);
    return std::ranges::any_of(contributorsOf(report_, *segment_, variant_, value),
                               [&](uint32_t op) { return ours.contains(op); });
  }

  // ---- the step ----

  Mark begun(uint32_t i, const Op &op) {
    Mark mark = marks_[op.operands[0]];
    needEachStep(i);
    need(i, mark.phase == Phase::Ended, "begins a step before the last one has ended");
    mark.cover = {};
    mark.phase = Phase::Begun;
    return mark;
  }

  Mark withLosses(uint32_t i, const Op &op) {
    Mark mark = marks_[op.operands[0]];
    needEachStep(i);
    need(i, mark.phase == Phase::Begun, "adds losses to a step that has not begun");
    int64_t microbatch = microbatch_;
    for (ValueId operand : op.operands)
      if (int64_t shift = shiftOf(operand); shift != 0)
        microbatch = microbatch_ + shift;
    need(i, !mark.cover.has(microbatch), "adds the losses of a microbatch a second time");
    Mark more;
    if (isTraining_[segmentIndex_])
      more.cover = Cover::of(microbatch);
    mark.cover = added(mark, more, microbatch).cover;
    return mark;
  }

  Mark finished(uint32_t i, const Op &op) {
    Mark mark = marks_[op.operands[0]];
    finish(i, op);
    mark.cover = {};
    mark.phase = Phase::Ended;
    mark.varies |= marks_[op.operands[1]].varies;
    if (op.getBool(AttrKey::norm_replicated))
      mark.varies |= marks_[op.operands[2]].varies;
    return mark;
  }

  void finish(uint32_t i, const Op &op) {
    const Mark &state = marks_[op.operands[0]];
    needEachStep(i);
    need(i, state.phase == Phase::Begun, "ends a step that has not begun");
    need(i, isComplete(state.cover) || (stages_.othersAddLosses && state.cover.kind == Cover::None),
         "ends a step without the losses of all its microbatches");
    hasEndedStep_ = true;
    const Op *pack = findPack(op.operands[1]);
    need(i,
         pack != nullptr && pack->operands[0] == op.operands[0] &&
             pack->operands[1] == op.operands[2],
         "takes sums that are not the result of 'step.pack' with the same step state and norm");
    if (pack != nullptr)
      need(i, cellOf(pack->operands[2]) == CellKind::Stop,
           "takes its stop flag from a value other than cell '@stop'");
    checkNorm(i, op.operands[2]);
  }

  /// What sums over ranks are made of.
  const Op *findPack(ValueId value) const {
    for (uint32_t def = segment_->values[value].def; def != kNone;
         def = segment_->values[value].def) {
      const Op &op = segment_->ops[def];
      if (op.kind == OpKind::StepPack)
        return holds(op.pred, variant_) ? &op : nullptr;
      if (op.kind != OpKind::AllReduce || !holds(op.pred, variant_))
        return nullptr;
      value = op.operands[0];
    }
    return nullptr;
  }

  CellKind cellOf(ValueId value) const {
    for (const Segment::Boundary &in : segment_->ins)
      if (in.value == value)
        return role_.cells[in.cell].kind;
    return CellKind::Buffer;
  }

  /// The norm is that of the whole gradients of all blocks, each once. Of those that other roles
  /// have, too, see checkNorms.
  void checkNorm(uint32_t i, ValueId squares) {
    uint32_t def = segment_->values[squares].def;
    const Op *sum = def == kNone ? nullptr : &segment_->ops[def];
    if (sum == nullptr || sum->kind != OpKind::SumSquares || !holds(sum->pred, variant_)) {
      need(i, false, "takes a norm that is not the result of a 'sum_squares' in its segment");
      return;
    }
    auto first = static_cast<size_t>(std::max<int64_t>(sum->getInt(AttrKey::block), 0));
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      if (bool isIn = block >= first && block - first < sum->operands.size();
          isIn != hasState_[block] && (isIn || !stages_.isHeldByOthers[block]))
        report_.add(Rule::Step, scope(segmentIndex_).spot(def),
                    fmt::format("the norm {} block '{}', whose state the role {}",
                                isIn ? "includes" : "leaves out", plan_.blocks[block].name,
                                isIn ? "does not have" : "has"),
                    plan_.blocks[block].name);
    need(def, sum->operands.size() + first <= plan_.blocks.size(),
         "takes more operands than there are blocks");
    for (size_t p = 0; p < sum->operands.size() && first + p < plan_.blocks.size(); ++p)
      checkSum(def, sum->operands[p], static_cast<int32_t>(first + p));
  }

  void followOptimizer(uint32_t i) {
    const Op &op = segment_->ops[i];
    auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
    ValueId state = op.operands.back();
    needEachStep(i);
    need(i, marks_[state].phase == Phase::Ended && hasEndedStep_,
         "takes a step state that is not the result of the step's 'step.finish'");
    need(i, updates_[static_cast<size_t>(block)]++ == 0,
         "updates its block a second time in a step");
    checkSum(i, op.operands[0], block);
    for (size_t operand = 1; operand < op.operands.size(); ++operand) {
      bool isOfBlock = operand + 1 < op.operands.size();
      if (Axes apart = apartIn(marks_[op.operands[operand]], isOfBlock ? block : -1); apart != 0)
        scope(segmentIndex_)
            .addValue(Rule::Sum, i, op.operands[operand],
                      "'{}' takes '%{}', which may differ between ranks along {}; these ranks need "
                      "to update block '{}' with equal values",
                      opInfo(op.kind).name, name(op.operands[operand]), namesOf(plan_, apart),
                      plan_.blocks[static_cast<size_t>(block)].name);
    }
    Mark mark = markOfState(block);
    for (ValueId result : op.results)
      marks_[result] = mark;
    uint64_t number = numbers_.ofOp(op);
    numbers_.setResults(op, number);
    if (numbers_.isOn() && isCompared_)
      taken_.push_back({block, segmentIndex_, i, number, numbers_.of(state)});
  }

  /// Axes along which ranks with the same elements of a block may hold other bytes; of no block,
  /// all along which they may.
  Axes apartIn(const Mark &mark, int32_t block) const {
    Axes parts = block < 0 ? Axes{0} : partsOf(block);
    Axes splits = block < 0 ? Axes{0} : splits_.of(block);
    return static_cast<Axes>(((mark.varies & ~parts) | (mark.split & ~splits)) & ~alone(block));
  }

  /// Axes along which no other ranks have the block.
  Axes alone(int32_t block) const {
    return block < 0
               ? Axes{0}
               : static_cast<Axes>(stages_.axes & ~stages_.sharedBy[static_cast<size_t>(block)]);
  }

  /// What is taken for a block's gradient is all of it.
  void checkSum(uint32_t i, ValueId sum, int32_t block) {
    const Mark mark = splits_.asBlock(marks_[sum], block);
    const std::string &blockName = plan_.blocks[static_cast<size_t>(block)].name;
    auto inspection = [&](std::string what) {
      Finding *finding =
          scope(segmentIndex_)
              .addValue(Rule::Sum, i, sum, "'{}' takes '%{}' as the gradient of block '{}'; it {}",
                        opInfo(segment_->ops[i].kind).name, name(sum), blockName, what);
      if (finding == nullptr)
        return;
      finding->noteAt = leftAt(sum);
      if (finding->noteAt.op != kNone)
        finding->note = "its cell is filled here";
    };
    Axes due = static_cast<Axes>(mark.due & ~alone(block));
    if (!isComplete(mark.cover))
      inspection(std::string(whyIncomplete(mark.cover.kind)));
    else if (due != 0)
      inspection(fmt::format("lacks contributions from other ranks: it is not summed over {}",
                             namesOf(plan_, due)));
    else if (Axes apart = apartIn(mark, block); apart != 0)
      inspection(fmt::format(
          "may differ between ranks along {}, which need to update the block with equal values",
          namesOf(plan_, apart)));
  }

  /// Where the content of the value's cell comes from.
  Spot leftAt(ValueId value) const {
    for (const Segment::Boundary &in : segment_->ins)
      if (in.value == value)
        for (uint32_t s = 0; s < role_.segments.size(); ++s)
          for (const Segment::Boundary &out : role_.segments[s].outs)
            if (out.cell == in.cell && s != segmentIndex_)
              return {roleIndex_, s, role_.segments[s].values[out.value].def};
    return {};
  }

  const std::string &name(ValueId value) const { return segment_->values[value].name; }

  void need(uint32_t i, bool condition, std::string_view what) {
    if (condition)
      return;
    if (Finding *finding =
            scope(segmentIndex_)
                .add(Rule::Step, i, "'{}' {}", opInfo(segment_->ops[i].kind).name, what))
      finding->variant = variant_;
  }

  void needEachStep(uint32_t i) {
    need(i, stepsOfLoop_ > 0, "runs outside 'steps'");
    need(i, !isSometimes_, "runs only in some steps; it needs to run in each");
  }

  Inspection &report_;
  const Plan &plan_;
  uint32_t roleIndex_;
  const Role &role_, &part_;
  Axes allAxes_, dataAxes_;
  std::optional<Axes> tokenAxes_;             ///< found where a stage receives
  const std::vector<const Block *> &blockOf_; ///< of whose state a checkpoint has each cell
  std::vector<bool> isTraining_;              ///< of each segment
  std::vector<bool> hasState_;                ///< of each block: the role has its state
  uint32_t stepCell_ = kNone;
  // State of the current step:
  std::vector<uint8_t> updates_; ///< of each block
  bool hasEndedStep_ = false, isSometimes_ = false, isCompared_ = false;
  int64_t stepsOfLoop_ = 0; ///< 0 outside of loops
  // State of the current segment:
  const Segment *segment_ = nullptr;
  uint32_t segmentIndex_ = 0;
  Variant variant_ = Variant::Only;
  std::vector<Mark> marks_;                      ///< of its values
  const std::vector<int64_t> *shifts_ = nullptr; ///< of its values, or empty
  int64_t microbatch_ = 0;                       ///< of the step, that it runs for
  BlockSplits splits_;
  Stages stages_;
  int64_t microbatches_ = 0;    ///< of a step
  std::vector<int64_t> counts_; ///< of each segment: its named runs in the step or `every`
  std::vector<int64_t> runs_;   ///< of each segment: other runs of it in it so far
  int64_t turn_ = 0;            ///< of the loop under way
  ValueNumbers numbers_;
  const RoleRings &rings_;
  const std::vector<VariantTable> &tables_; ///< of each segment
  std::vector<Update> taken_;
};

} // namespace

void checkSums(Inspection &inspection) {
  std::vector<PartUpdates> updates;
  for (uint32_t r = 0; r < inspection.plan().roles.size(); ++r)
    for (Role &part : partsOfRole(inspection, r)) {
      if (inspection.size() != 0)
        return;
      std::vector<Update> taken = SumCheck(inspection, r, part).run();
      updates.push_back({r, std::move(part), std::move(taken)});
    }
  compareRoles(inspection, updates);
  if (inspection.size() != 0)
    return;
  checkNorms(inspection);
  checkScales(inspection);
}

} // namespace shardc::plan::verifier
