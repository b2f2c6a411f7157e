// Follows the ops of a segment and computes a mark for each value. The gradient that an optimizer
// reads must be the sum of the contributions of all microbatches and of all ranks that share the
// block, each once. State that ranks share must change in the same way on all of them.
#include "runtime/verify/VerifySegmentSums.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/Summary.h"
#include "runtime/verify/VerifyContents.h"

namespace shardc::plan::verifier {
namespace {

/// The cost of finding the marks of an op, in counted visits.
constexpr uint64_t kVisitsOfMark = 4;

/// Operand indices of an op: the load of each expert, and the operands that tell which tokens count
/// and how many; -1 for those that it lacks.
struct NamedOperands {
  int load = -1;
  std::array<int, 3> counted = {-1, -1, -1};
};
const NamedOperands &namedOperandsOf(OpKind kind) {
  static const std::vector<NamedOperands> operands = [] {
    std::vector<NamedOperands> all;
    for (int each = 0; each < kOpCount; ++each) {
      auto at = [&](std::string_view name) {
        return positionOf(opInfo(static_cast<OpKind>(each)).operands, name);
      };
      all.push_back({at("load"), {at("labels"), at("mask"), at("n")}});
    }
    return all;
  }();
  return operands[static_cast<size_t>(kind)];
}

class MarkFollower final : public SegmentSums, RoleCheck {
public:
  MarkFollower(Inspection &inspection, uint32_t roleIndex, const Role &part, bool areNumbered)
      : SegmentSums({inspection.plan(), part, areNumbered},
                    {inspection, inspection.plan().roles[roleIndex]}),
        RoleCheck(inspection, roleIndex), allAxes_(axesOf(plan_)),
        dataAxes_(axesOf(plan_, groupOfKind(plan_, GroupKind::Data))), splits_(inspection),
        stages_(stagesOf(inspection, roleIndex, part)) {
    step.updates.resize(plan_.blocks.size());
    step.squared.resize(plan_.blocks.size());
    isTraining = segmentsOfMicrobatches(role_);
  }

  Holds follow(uint32_t s, const Variant &variant, const Holds &taken) override {
    segment_ = &role_.segments[s];
    segmentIndex_ = s, variant_ = variant;
    if (!report_.spend(role_.cells.size() + segment_->values.size() +
                       segment_->ops.size() * kVisitsOfMark))
      return {};
    marks_.assign(segment_->values.size(), {});
    numbers.beginSegment(*segment_);
    shifts_ = &report_.shiftsOf(roleIndex_, s);
    for (size_t i = 0; i < taken.size(); ++i) {
      marks_[segment_->ins[i].value] = taken[i].mark;
      numbers.set(segment_->ins[i].value, taken[i].number);
    }
    for (uint32_t i = 0; i < segment_->ops.size(); ++i)
      followOp(i);
    Holds left;
    left.reserve(segment_->outs.size());
    for (const Segment::Boundary &out : segment_->outs)
      left.push_back({marks_[out.value], numbers.of(out.value)});
    return left;
  }

  Mark markOfState(int32_t block) const override {
    return {.varies = partsOf(block), .split = splits_.of(block), .block = block};
  }

private:
  Axes partsOf(int32_t block) const { return stateAxesOf(plan_, blockAt(plan_, block)); }

  /// Axes along which ranks hold other parts of the block. `value` is this rank's part.
  Axes heldBy(int32_t block, ValueId value) const {
    std::optional<BlockPart> part =
        partOf(blockAt(plan_, block), segment_->values[value].type.numel());
    return part ? axesOf(plan_, part->group) : partsOf(block);
  }

  /// True if the value covers all microbatches of the step.
  bool isComplete(const Cover &cover) const {
    return cover == Cover{Cover::Some, 0, step.microbatches};
  }
  /// The value's microbatch, relative to the current one.
  int64_t shiftOf(ValueId value) const {
    return shifts_->empty() || (*shifts_)[value] == kOfNone ? 0 : (*shifts_)[value];
  }
  /// The microbatch of an op's results.
  int64_t microbatchOf(const Op &op) const {
    return op.results.empty() ? step.microbatch : step.microbatch + shiftOf(op.results[0]);
  }

  void followOp(uint32_t i) {
    const Op &op = segment_->ops[i];
    if (opInfo(op).traits != OpTraits::Alias && !holds(op.pred, variant_)) {
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Else)
          set(op.results[tie.result], marks_[tie.value], tie.value);
      return;
    }
    if (opInfo(op).traits == OpTraits::Collective)
      return followCollective(i);
    if (opInfo(op).isOptimizer())
      return followOptimizer(i);
    Mark mark = markOf(i, op);
    for (ValueId result : op.results)
      give(op, result, mark);
    // The result with the amaxes also contains those of earlier ops. No other result depends on
    // these, so the other results vary only as the op's own operands do.
    if (size_t seen = seenBy(op); seen < op.results.size()) {
      Mark withoutSeen = fresh(op, inPlaceOperand(op, seen));
      for (size_t r = 0; r < op.results.size(); ++r)
        if (r != seen)
          give(op, op.results[r], withoutSeen);
    }
    numbers.setResults(op, numbers.ofOp(op));
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        addTo(op, op.results[tie.result], tie.value);
    if (auto squares = static_cast<size_t>(opInfo(op).squares); squares < op.results.size())
      takeSquares(op.results[squares], op.results[static_cast<size_t>(opInfo(op).squared)]);
  }

  /// The squares of a sum have the contributions of the sum.
  void takeSquares(ValueId squares, ValueId sum) {
    marks_[squares] = marks_[sum];
    numbers.set(squares, mixed(numbers.of(sum), 1));
  }

  /// Sets the mark of a result. Each computed result is a separate contribution.
  void give(const Op &op, ValueId result, const Mark &mark) {
    marks_[result] = mark;
    if (contributes(opInfo(op).sum))
      marks_[result].latest = sets.of(segmentIndex_, result);
  }
  static bool contributes(SumRole role) {
    return role == SumRole::Computes || role == SumRole::CountsRows || role == SumRole::Loads ||
           role == SumRole::ComputesShard;
  }

  void set(ValueId result, const Mark &mark, ValueId from) {
    marks_[result] = mark;
    numbers.set(result, numbers.of(from));
  }

  /// A contribution to the gradient of a split parameter is for this rank's elements only, and so
  /// is the sum.
  void addTo(const Op &op, ValueId result, ValueId value) {
    Mark contribution = withSplits(marks_[result], marks_[value].split);
    marks_[result] = added(sets, contribution, marks_[value], microbatchOf(op));
    numbers.add(result, value);
  }

  Mark partOfPack(const Op &op, size_t k) {
    return splits_.packed(marks_[op.operands[k]], blockNamedBy(op), k);
  }

  static Mark times(Mark mark, const Op &op) {
    mark.multiple *= static_cast<float>(op.getFloat(AttrKey::scale));
    return mark;
  }

  Mark markOf(uint32_t i, const Op &op) {
    switch (opInfo(op).sum) {
    case SumRole::Computes:
      needAlike(i, op);
      return fresh(op);
    case SumRole::CountsRows:
    case SumRole::Loads:
    case SumRole::ComputesShard:
      return fresh(op);
    case SumRole::Passes:
      return splits_.asBlock(times(marks_[op.operands[0]], op), blockNamedBy(op));
    case SumRole::Cuts:
      return splits_.viewed(marks_[op.operands[0]], op, segment_->values);
    case SumRole::Joins: {
      Mark mark = op.operands.empty() ? Mark{} : partOfPack(op, 0);
      for (size_t k = 0; k < op.operands.size(); ++k)
        mark = packed(sets, mark, partOfPack(op, k));
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
    case SumRole::EndsMaxima:
    case SumRole::Balances:
      opInfo(op).sum == SumRole::Balances ? needWholeLoad(i, op) : needMaxima(i, op);
      return fresh(op);
    case SumRole::ResetsStep: // at a run's start, a step counts as ended
      return {.phase = Phase::Ended};
    case SumRole::SumsMatrices:
    case SumRole::PacksStep:
    case SumRole::PacksEval: // losses and squares differ by rank until a collective adds them
      return {.varies = allAxes_, .due = allAxes_};
    case SumRole::BeginsStep:
      return begun(i, op);
    case SumRole::AddsLosses:
      return withLosses(i, op);
    case SumRole::FinishesStep:
      return finished(i, op);
    case SumRole::BeginsEval: {
      Mark mark = marks_[op.operands[0]];
      mark.cover = {};
      mark.evaluation = Phase::Begun;
      return mark;
    }
    case SumRole::AddsEvalLosses: {
      const Mark &mark = marks_[op.operands[0]];
      need(i, mark.evaluation == Phase::Begun, "adds losses to an evaluation that has not begun");
      return withLosses(i, op, mark, /*isCounted=*/true);
    }
    case SumRole::FinishesEval:
      return finishedEval(i, op);
    case SumRole::Combines:
    case SumRole::Optimizes:
      break; // see followCollective() and followOptimizer()
    }
    return {};
  }

  /// The index of the result in which a quantising op accumulates amaxes: those in the operand's
  /// buffer and those of its own values. The number of results if it has none.
  static size_t seenBy(const Op &op) {
    if (op.results.size() < 2) // nearly always
      return op.results.size();
    const OpInfo &info = opInfo(op);
    bool quantises = op.getInt(AttrKey::fp8_recipe) != 0 ||
                     std::ranges::any_of(info.scaleOf, [](int scale) { return scale >= 0; });
    for (size_t r = 0; quantises && r < op.results.size(); ++r)
      if (inPlaceOperand(op, r) >= 0)
        return r;
    return op.results.size();
  }

  /// The mark of a new contribution of the microbatch. It differs between ranks as the operands do,
  /// except operand `without`.
  Mark fresh(const Op &op, int without = -1) const {
    Mark mark;
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (static_cast<int>(k) != without)
        mark.varies |= marks_[op.operands[k]].varies | marks_[op.operands[k]].split;
    SumRole role = opInfo(op).sum;
    if (role == SumRole::Loads)
      mark.varies |= dataAxes_;
    if (opInfo(op).takesIndex())
      mark.varies |= axesOf(plan_, op.group);
    // Stages compute different values, so each stage's contribution to a block is a partial sum
    // too.
    mark.due = mark.varies | stages_.axes;
    if (role == SumRole::ComputesShard) { // this rank's part has rows of the whole batch
      mark.varies |= heldBy(blockNamedBy(op), op.results[0]);
      mark = times(mark, op);
    }
    if (isTraining[segmentIndex_])
      mark.cover = Cover::of(microbatchOf(op));
    return mark;
  }

  /// Axes along which ranks have different tokens: other samples, or other slices of the same
  /// samples.
  Axes tokenAxes() {
    if (!tokenAxes_) {
      tokenAxes_ = dataAxes_;
      forEachOp(plan_, [&](Spot, const Segment &segment, const Op &op) {
        if (op.kind != OpKind::BatchLoad)
          return;
        *tokenAxes_ |= axesOf(plan_, op.group);
        tokens_ = segment.values[resultNamed<OpKind::BatchLoad>(op, "tokens")].type.numel();
      });
    }
    return *tokenAxes_;
  }

  /// The model-parallel axes along which ranks have different rows of a value of this type: all of
  /// them if the value has at most a rank's share of the token rows, otherwise none.
  Axes rowAxes(const Type &type) {
    // Experts are also divided among ranks with other tokens.
    auto axes = static_cast<Axes>(splits_.ofAll() & ~tokenAxes());
    int64_t members = ranksAlong(plan_, axes), rows = type.numel() / type.shape[type.rank - 1];
    return members > 1 && rows * members <= tokens_ ? axes : Axes{0};
  }

  /// The mark of a received value. The sender computed it from the same microbatch, so the mark
  /// follows from the axes along which ranks have other tokens or rows.
  void followRecv(const Op &op) {
    Mark mark;
    mark.varies = tokenAxes();
    mark.varies |= rowAxes(segment_->values[op.results[0]].type);
    mark.due = mark.varies | stages_.axes;
    if (isTraining[segmentIndex_])
      mark.cover = Cover::of(microbatchOf(op));
    mark.latest = sets.of(segmentIndex_, op.results[0]);
    marks_[op.results[0]] = mark;
    numbers.set(op.results[0], numbers.ofMeeting(op));
  }

  void followCollective(uint32_t i) {
    const Op &op = segment_->ops[i];
    if (op.kind == OpKind::Recv)
      return followRecv(op);
    if (op.kind == OpKind::Send)
      return;
    Axes over = axesOf(plan_, op.group);
    needParts(i, over);
    Mark mark = combined(op, splits_.asBlock(marks_[op.operands[0]], blockNamedBy(op)), over);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        mark = added(sets, mark, marks_[tie.value], microbatchOf(op));
    uint64_t number = numbers.ofMeeting(op);
    for (ValueId result : op.results) {
      marks_[result] = mark;
      numbers.set(result, number);
    }
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        numbers.add(op.results[tie.result], tie.value);
  }

  Mark combined(const Op &op, const Mark &operand, Axes over) const {
    switch (collectiveKindOf(op)) {
    case CollectiveKind::AllGather:
      return gathered(operand, over);
    case CollectiveKind::ReduceScatter:
      return reduced(plan_, operand, over, op.getBool(AttrKey::average), /*isScattered=*/true);
    case CollectiveKind::AllReduce:
      return reduced(plan_, operand, over, op.getBool(AttrKey::average), /*isScattered=*/false);
    case CollectiveKind::Send:
    case CollectiveKind::Recv:
      return operand; // see followCollective()
    case CollectiveKind::AllReduceMax:
      return exchanged(operand, over, /*isApart=*/false);
    case CollectiveKind::AllToAll:
      return exchanged(operand, over, /*isApart=*/true);
    case CollectiveKind::Shift:
      return shifted(operand, over);
    }
    return operand;
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
    const Mark &mark = marks_[op.operands[0]];
    needEachStep(i);
    need(i, mark.phase == Phase::Begun, "adds losses to a step that has not begun");
    return withLosses(i, op, mark, isTraining[segmentIndex_]);
  }

  /// The mark of a step state with added losses. `isCounted`: the losses count as contributions, so
  /// that a missing microbatch is found.
  Mark withLosses(uint32_t i, const Op &op, Mark mark, bool isCounted) {
    constexpr size_t kLosses = operandIndex<OpKind::LossAdd>("losses");
    static_assert(kLosses == operandIndex<OpKind::EvalAdd>("losses"));
    needAlike(i, op.operands[kLosses], static_cast<Axes>(allAxes_ & ~tokenAxes()));
    needCounted(i, op);
    int64_t microbatch = step.microbatch;
    for (ValueId operand : op.operands)
      if (int64_t shift = shiftOf(operand); shift != 0)
        microbatch = step.microbatch + shift;
    need(i, !mark.cover.has(microbatch), "adds the losses of a microbatch a second time");
    Mark more;
    if (isCounted)
      more.cover = Cover::of(microbatch);
    mark.cover = added(sets, mark, more, microbatch).cover;
    return mark;
  }

  Mark finishedEval(uint32_t i, const Op &op) {
    Mark mark = marks_[op.operands[0]];
    need(i, mark.evaluation == Phase::Begun, "ends an evaluation that has not begun");
    bool isWhole = mark.cover == Cover{Cover::Some, 0, step.evalMicrobatches};
    need(i, isWhole || (stages_.othersAddLosses && mark.cover.kind == Cover::None),
         "ends an evaluation without the losses of all its microbatches");
    mark.cover = {};
    mark.evaluation = Phase::Ended;
    mark.varies |= marks_[operandNamed<OpKind::EvalFinish>(op, "partial")].varies;
    return mark;
  }

  Mark finished(uint32_t i, const Op &op) {
    Mark mark = marks_[op.operands[0]];
    finish(i, op);
    // The new state is computed from these sums, so it differs between ranks if they do.
    mark.cover = {};
    mark.phase = Phase::Ended;
    mark.varies |= marks_[operandNamed<OpKind::StepFinish>(op, "partial")].varies;
    if (op.getBool(AttrKey::norm_replicated))
      mark.varies |= marks_[operandNamed<OpKind::StepFinish>(op, "ss")].varies;
    return mark;
  }

  void finish(uint32_t i, const Op &op) {
    const Mark &state = marks_[op.operands[0]];
    needEachStep(i);
    need(i, state.phase == Phase::Begun, "ends a step that has not begun");
    need(i, isComplete(state.cover) || (stages_.othersAddLosses && state.cover.kind == Cover::None),
         "ends a step without the losses of all its microbatches");
    step.hasEnded = true;
    constexpr OpKind kFinish = OpKind::StepFinish, kPack = OpKind::StepPack;
    const ValueId squares = operandNamed<kFinish>(op, "ss");
    const Op *pack = findPack(operandNamed<kFinish>(op, "partial"));
    need(i,
         pack != nullptr &&
             operandNamed<kPack>(*pack, "state") == operandNamed<kFinish>(op, "state") &&
             operandNamed<kPack>(*pack, "ss") == squares,
         "takes sums that are not the result of 'step.pack' with the same step state and norm");
    if (pack == nullptr)
      return checkNorm(i, squares);
    const Cell *stop = cellOf(role_, *segment_, operandNamed<kPack>(*pack, "stop"));
    need(i, stop != nullptr && stop->kind == CellKind::Stop,
         "takes its stop flag from a value other than cell '@stop'");
    checkNorm(i, squares);
  }

  /// The 'step.pack' whose result, summed over ranks, is this value; null if there is none.
  const Op *findPack(ValueId value) const {
    const Op *op = producerOf(*segment_, value);
    while (op != nullptr && op->kind == OpKind::AllReduce && holds(op->pred, variant_))
      op = producerOf(*segment_, op->operands[0]);
    bool isPack = op != nullptr && op->kind == OpKind::StepPack && holds(op->pred, variant_);
    return isPack ? op : nullptr;
  }

  /// Checks that the norm contains the complete gradient of each block once. checkNorms() checks
  /// blocks that several roles have.
  void checkNorm(uint32_t i, ValueId squares) {
    uint32_t def = segment_->values[squares].def;
    const Op *sum = producerOf(*segment_, squares);
    if (sum == nullptr || sum->kind != OpKind::SumSquares || !holds(sum->pred, variant_)) {
      need(i, false, "takes a norm that is not the result of a 'sum_squares' in its segment");
      return;
    }
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      if (bool isIn = std::ranges::find(sum->blocks, static_cast<int32_t>(block),
                                        &ListedBlock::block) != sum->blocks.end();
          isIn != report_.updates(roleIndex_, block) && (isIn || !stages_.isHeldByOthers[block]))
        report_.addAbout(finding::NormBlocks, scope(segmentIndex_).spot(def),
                         plan_.blocks[block].name, isIn ? "includes" : "leaves out",
                         isIn ? "does not have" : "has");
    checkSquares(def, *sum);
  }

  /// If the op reads several sums of squares of a block, they must be those of its parts, each
  /// once.
  void checkSquares(uint32_t i, const Op &sum) {
    std::vector<std::optional<Mark>> all(plan_.blocks.size());
    for (size_t p = 0; p < sum.operands.size(); ++p) {
      std::optional<Mark> &mark = all[static_cast<size_t>(sum.blocks[p].block)];
      Mark part = splits_.asBlock(marks_[sum.operands[p]], sum.blocks[p].block);
      bool isTwice = mark && sets.haveCommon(mark->latest, part.latest);
      mark = mark ? packed(sets, *mark, part) : part;
      if (isTwice)
        mark->cover = {Cover::Twice};
    }
    step.squared.assign(plan_.blocks.size(), std::nullopt);
    for (size_t p = 0; p < sum.operands.size(); ++p) {
      auto block = static_cast<size_t>(sum.blocks[p].block);
      if (std::optional<OpSet> &squared = step.squared[block]; !squared) {
        squared = all[block]->latest;
        checkSum(i, sum.operands[p], sum.blocks[p].block, *all[block]);
      }
    }
  }

  void followOptimizer(uint32_t i) {
    const Op &op = segment_->ops[i];
    const int32_t block = blockNamedBy(op);
    const auto stateAt = static_cast<size_t>(positionOf(opInfo(op).operands, "state"));
    ValueId state = op.operands[stateAt];
    needEachStep(i);
    need(i, marks_[state].phase == Phase::Ended && step.hasEnded,
         "takes a step state that is not the result of the step's 'step.finish'");
    need(i, step.updates[static_cast<size_t>(block)]++ == 0,
         "updates its block a second time in a step");
    const Mark gradient = splits_.asBlock(marks_[op.operands[0]], block);
    checkSum(i, op.operands[0], block, gradient);
    if (const auto &squared = step.squared[static_cast<size_t>(block)];
        squared && *squared != gradient.latest)
      scope(segmentIndex_)
          .addValue(finding::SquaresOfOther, i, op.operands[0], blockAt(plan_, block).name);
    for (size_t operand = 1; operand < op.operands.size(); ++operand) {
      bool isOfBlock = operand != stateAt;
      if (Axes apart = apartIn(marks_[op.operands[operand]], isOfBlock ? block : -1); apart != 0)
        scope(segmentIndex_)
            .addValue(finding::UpdateOperandDiffers, i, op.operands[operand], namesOf(plan_, apart),
                      blockAt(plan_, block).name);
    }
    Mark mark = markOfState(block);
    for (ValueId result : op.results)
      marks_[result] = mark;
    uint64_t number = numbers.ofOp(op);
    numbers.setResults(op, number);
    if (numbers.isOn() && step.isCompared)
      updates.push_back({block, segmentIndex_, i, number, numbers.of(state)});
  }

  /// Axes along which ranks with the same elements of a block may hold different bytes. Without a
  /// block, all axes along which bytes may differ.
  Axes apartIn(const Mark &mark, int32_t block) const {
    Axes parts = block < 0 ? Axes{0} : partsOf(block);
    Axes splits = block < 0 ? Axes{0} : splits_.of(block);
    return static_cast<Axes>(((mark.varies & ~parts) | (mark.split & ~splits)) & ~alone(block));
  }

  /// Axes of stages along which no other stage has the block.
  Axes alone(int32_t block) const {
    return block < 0
               ? Axes{0}
               : static_cast<Axes>(stages_.axes & ~stages_.sharedBy[static_cast<size_t>(block)]);
  }

  /// Reports an op that reads an incomplete gradient of a block.
  void checkSum(uint32_t i, ValueId sum, int32_t block, const Mark &mark) {
    const std::string &blockName = blockAt(plan_, block).name;
    auto inspection = [&](std::string what) {
      Finding &finding =
          scope(segmentIndex_).addValue(finding::GradientTaken, i, sum, blockName, what);
      finding.noteAt = leftAt(sum);
      if (finding.noteAt.op != kNone)
        finding.note = "its cell is filled here";
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
    else if (int64_t made = rowsIn(mark), needed = rowsUsed(block); made != needed)
      inspection(
          fmt::format("has contributions of {} rows of each microbatch; it needs those of {}, "
                      "for which ops of the forward pass take weights of the block",
                      made, needed));
    else if (!isAllowed(mark.multiple))
      inspection(mark.multiple == kManyMultiples
                     ? "adds contributions that are multiplied by different numbers"
                     : fmt::format("is {} times the sum over all ranks; it needs to be {}",
                                   mark.multiple, multiplesAllowed()));
  }

  /// The number of rows over which contributions are summed, for the contributions that all
  /// microbatches have in common. A weight that is used several times, or in pieces, counts the
  /// rows of all uses.
  int64_t rowsIn(const Mark &mark) {
    OpSet made = sets.common(mark.before, mark.latest);
    int64_t rows = 0;
    if (made == kAllOps)
      return rows;
    sets.forEach(made, [&](uint32_t s, ValueId value) {
      const Segment &segment = role_.segments[s];
      const Value &result = segment.values[value];
      rows += rowsOfResult(plan_, segment, segment.ops[result.def], result.defResult);
    });
    return rows;
  }
  int64_t rowsUsed(int32_t block) const {
    int64_t rows = 0;
    for (const WeightUse &use : report_.weightUses) {
      const Segment &segment = plan_.roles[use.at.role].segments[use.at.segment];
      if (use.at.role == roleIndex_ && use.block == block && !use.isGradient &&
          isTraining[use.at.segment])
        rows += rowsOfOperand(plan_, segment, segment.ops[use.at.op], use.operand);
    }
    return rows;
  }

  /// Whether gradients may be this multiple of the sum over all tokens: 1, or the average over
  /// ranks with other tokens. All blocks must have the same multiple.
  bool isAllowed(float multiple) {
    constexpr float kRounding = 1e-5f; // relative rounding error of a division and a factor in f32
    auto isNear = [&](float other) { return std::abs(multiple - other) <= kRounding * other; };
    std::optional<float> &ofAll = report_.gradientMultiple;
    float average = 1 / static_cast<float>(ranksAlong(plan_, tokenAxes()));
    if (!ofAll && (isNear(1) || isNear(average)))
      ofAll = multiple;
    return ofAll && isNear(*ofAll);
  }
  std::string multiplesAllowed() {
    if (report_.gradientMultiple)
      return fmt::format("{} times that sum, as for other blocks", *report_.gradientMultiple);
    return fmt::format("that sum, or the sum divided by the {} ranks with other tokens",
                       ranksAlong(plan_, tokenAxes()));
  }

  /// Where a segment stored the content of the value's cell.
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
    if (!condition)
      scope(segmentIndex_).add(finding::StepOp, i, what).variant = variant_;
  }

  /// Whether the run only prints the losses. Such losses are scaled for a sum over all ranks, which
  /// includes ranks with equal losses.
  bool isReportedOnly(ValueId value) const {
    auto out = std::ranges::find(segment_->outs, value, &Segment::Boundary::value);
    if (out == segment_->outs.end())
      return false;
    return verifier::isReportedOnly(role_.cells[out->cell].kind);
  }

  /// A sum must not add equal values, or values that are already sums over these ranks. For blocks,
  /// the cover shows that. In a sum over stages, one stage may have the whole value.
  void needParts(uint32_t i, Axes over) {
    const Op &op = segment_->ops[i];
    if (!isSum(collectiveKindOf(op)) || op.getBool(AttrKey::average) || blockNamedBy(op) >= 0 ||
        (over & stages_.axes) != 0 || isReportedOnly(op.results[0]))
      return;
    needSame(finding::AddsNoParts, i, op.operands[0], over & ~marks_[op.operands[0]].due);
  }

  /// Reports a value that must be equal on all ranks but differs along the axes `apart`, if any.
  template <FindingRow Row> void needSame(Row row, uint32_t i, ValueId value, int apart) {
    if (apart != 0)
      scope(segmentIndex_).addValue(row, i, value, namesOf(plan_, static_cast<Axes>(apart)));
  }
  int apartIn(ValueId value) const {
    return (marks_[value].varies | marks_[value].split) & ~stages_.axes;
  }

  /// Ranks with the same tokens must have equal losses, so that their gradients start from equal
  /// values.
  void needAlike(uint32_t i, ValueId losses, Axes axes) {
    needSame(finding::LossesDiffer, i, losses, marks_[losses].varies & axes);
  }

  /// Ranks with parts of the columns must have equal statistics. The loss of a router must use the
  /// load of all rows of the same samples.
  void needAlike(uint32_t i, const Op &op) {
    if (op.kind == OpKind::CrossEntropyBwd)
      needAlike(i, operandNamed<OpKind::CrossEntropyBwd>(op, "lse"), axesOf(plan_, op.group));
    needCounted(i, op);
    int load = namedOperandsOf(op.kind).load;
    if (load < 0)
      return;
    ValueId value = op.operands[static_cast<size_t>(load)];
    needSame(finding::LoadDiffers, i, value, marks_[value].varies & allAxes_ & ~dataAxes_);
  }

  /// Ranks with the same tokens must count the same tokens and divide by the same numbers.
  void needCounted(uint32_t i, const Op &op) {
    for (int operand : namedOperandsOf(op.kind).counted)
      if (static_cast<size_t>(operand) < op.operands.size()) {
        ValueId value = op.operands[static_cast<size_t>(operand)];
        needSame(finding::TokensDiffer, i, value, marks_[value].varies & allAxes_ & ~tokenAxes());
      }
  }

  /// All ranks have the same expert bias, so its update must use the load of all microbatches and
  /// ranks.
  void needWholeLoad(uint32_t i, const Op &op) {
    constexpr size_t kBias = operandIndex<OpKind::ExpertBiasUpdate>("bias"),
                     kLoad = operandIndex<OpKind::ExpertBiasUpdate>("load");
    needEachStep(i);
    const Mark &load = marks_[op.operands[kLoad]];
    if (!isComplete(load.cover))
      scope(segmentIndex_)
          .addValue(finding::LoadIncomplete, i, op.operands[kLoad], whyIncomplete(load.cover.kind));
    for (size_t operand : {kBias, kLoad})
      needSame(finding::BalanceDiffers, i, op.operands[operand], apartIn(op.operands[operand]));
  }

  /// Ranks that quantise with the same scale must use the amaxes of all of these ranks.
  void needMaxima(uint32_t i, const Op &op) {
    ValueId seen = operandNamed<OpKind::AmaxUpdate>(op, "seen");
    needSame(finding::MaximaDiffer, i, seen, apartIn(seen));
  }

  void needEachStep(uint32_t i) {
    need(i, step.steps > 0, "runs outside 'steps'");
    need(i, !step.isSometimes, "runs only in some steps; it needs to run in each");
  }

  Axes allAxes_, dataAxes_;
  std::optional<Axes> tokenAxes_; ///< computed by the first call of tokenAxes()
  int64_t tokens_ = 0;            ///< in a microbatch of a rank; set with tokenAxes_
  BlockSplits splits_;
  Stages stages_;
  // State of the current segment:
  const Segment *segment_ = nullptr;
  uint32_t segmentIndex_ = 0;
  Variant variant_ = Variant::Only;
  std::vector<Mark> marks_;                      ///< of its values
  const std::vector<int64_t> *shifts_ = nullptr; ///< microbatch offsets of its values, or empty
};

} // namespace

std::unique_ptr<SegmentSums> makeSegmentSums(Inspection &inspection, uint32_t roleIndex,
                                             const Role &part, bool areNumbered) {
  return std::make_unique<MarkFollower>(inspection, roleIndex, part, areNumbered);
}

} // namespace shardc::plan::verifier
