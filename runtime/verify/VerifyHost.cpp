// Checks the interface to the host. No other cell overlaps a cell that the host may write at any
// time, and only the op that it is for reads it. All ranks end after the same step.
#include <algorithm>

#include "runtime/base/StepState.h"
#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRange.h"

namespace shardc::plan::verifier {
namespace {

/// The op that may read a cell that the host writes, and the operand with which it reads it.
struct Consumer {
  OpKind kind;
  size_t operand;
};
Consumer consumerOf(CellKind cell) {
  if (cell == CellKind::Stop)
    return {OpKind::StepPack, operandIndex<OpKind::StepPack>("stop")};
  return {OpKind::BatchLoad, operandIndex<OpKind::BatchLoad>("feed")};
}

class HostCheck : RoleCheck {
public:
  HostCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), indices_(inspection.plan(), role_) {}

  void run() {
    for (uint32_t c = 0; c < role_.cells.size() && !report_.isFull(); ++c)
      checkCell(c);
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s) {
      checkReads(scope(s));
      checkFeeds(scope(s));
    }
  }

private:
  void checkCell(uint32_t c) {
    const Cell &cell = role_.cells[c];
    CellKindInfo::Host host = cellKindInfo(cell.kind).host;
    if (host != CellKindInfo::Writes && host != CellKindInfo::Reads)
      return;
    Arena needed = host == CellKindInfo::Writes ? Arena::Host : Arena::State;
    if (cell.arena != needed)
      addCell(finding::HostNeedsArena, c, toString(cell.arena), toString(needed));
    if (cell.kind == CellKind::Step && cell.type.bytes() != static_cast<int64_t>(sizeof(StepState)))
      addCell(finding::StepStateBytes, c, cell.type.bytes(), sizeof(StepState));
    if (host == CellKindInfo::Writes)
      checkApart(c);
  }

  /// Refuses other cells that share bytes with a cell that the host may write at any time.
  void checkApart(uint32_t c) {
    Range own = Range::of(role_.cells[c], indices_);
    for (uint32_t other = 0; other < role_.cells.size(); ++other) {
      const Cell &cell = role_.cells[other];
      if (other == c || cell.arena != role_.cells[c].arena)
        continue;
      if (std::optional<ByteRange> bytes = commonBytes(own, Range::of(cell, indices_), indices_))
        addCell(finding::OverlapsHostCell, c, cell.name, toString(*bytes));
    }
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i)
        if (const Op &op = role_.segments[s].ops[i]; op.kind == OpKind::ToHost)
          checkCopyApart(scope(s), i, role_.cells[c], own);
  }

  void checkCopyApart(const Scope &where, uint32_t i, const Cell &cell, const Range &own) {
    ValueId copy = where.segment.ops[i].results[0];
    if (where.value(copy).place.arena != cell.arena)
      return;
    if (std::optional<ByteRange> bytes =
            commonBytes(own, Range::of(where.value(copy), indices_), indices_))
      where.addValue(finding::CopyInHostCell, i, copy, cell.name, toString(*bytes));
  }

  /// While a segment runs, only the entry of the current microbatch in a ring is stable, and only
  /// `batch.load` knows which one that is. The flag may be set at any time; `step.pack` takes it
  /// into a sum over ranks, so all ranks see the same value.
  void checkReads(const Scope &where) {
    std::vector<uint32_t> cellOf; // by value: its cell, if the host writes it
    for (const Segment::Boundary &in : where.segment.ins)
      if (isWrittenByHost(role_.cells[in.cell])) {
        cellOf.resize(where.segment.values.size(), kNone);
        cellOf[in.value] = in.cell;
      }
    for (uint32_t i = 0; i < where.segment.ops.size(); ++i) {
      const Op &op = where.segment.ops[i];
      if (op.kind == OpKind::StepFinish)
        checkAgreement(where, i);
      if ((op.kind == OpKind::StepReset || op.kind == OpKind::InitBlock) &&
          isRun(where.segmentIndex))
        where.add(finding::ReplacesLoadedState, i);
      for (size_t operand = 0; operand < op.operands.size() && !cellOf.empty(); ++operand) {
        uint32_t cell = cellOf[op.operands[operand]];
        if (cell == kNone)
          continue;
        if (opInfo(op).traits == OpTraits::Alias)
          cellOf[op.results[0]] = cell;
        else
          checkRead(where, i, operand, cell);
      }
    }
  }

  void checkRead(const Scope &where, uint32_t i, size_t operand, uint32_t c) {
    const Op &op = where.segment.ops[i];
    const Cell &cell = role_.cells[c];
    Consumer consumer = consumerOf(cell.kind);
    const Value &read = where.value(op.operands[operand]);
    bool isWhole = read.type == cell.type && liesAt(report_.plan(), role_, read.place, cell.place);
    if (op.kind == consumer.kind && operand == consumer.operand && isWhole)
      return;
    where.addValue(finding::ReadsHostCell, i, op.operands[operand], isWhole ? "" : "a part of ",
                   cell.name, opInfo(consumer.kind).name);
  }

  /// Ranks see the stop flag at different times. They stop after the same step if each decides by
  /// the same sum over all ranks.
  void checkAgreement(const Scope &where, uint32_t i) {
    const Plan &plan = report_.plan();
    const Op &finish = where.segment.ops[i];
    const ValueId partial = operandNamed<OpKind::StepFinish>(finish, "partial");
    const Value &sums = where.value(partial);
    if (plan.worldSize() < 2)
      return;
    if (sums.def != kNone) {
      const Op &sum = where.segment.ops[sums.def];
      if (sum.kind == OpKind::AllReduce && plan.groupSize(sum.group) == plan.worldSize() &&
          (sum.pred == Pred::Always || sum.pred == finish.pred))
        return;
    }
    where.addValue(finding::StopsDiffer, i, partial, plan.worldSize());
  }

  /// Training and evaluations need their own batches. Each ring feeds one op of one segment, or of
  /// several segments that share the microbatches of a step.
  void checkFeeds(const Scope &where) {
    const SegmentKindInfo &info = segmentKindInfo(where.segment.kind);
    CellKind needed = where.segment.kind == SegmentKind::Eval ? CellKind::EvalFeed : CellKind::Feed;
    for (const Segment::Boundary &in : where.segment.ins)
      if (const Cell &cell = role_.cells[in.cell];
          info.form == SegmentKindInfo::Body && isFeed(cell) && cell.kind != needed)
        where.addValue(finding::FeedOfOtherKind, where.opOf(in.value), in.value, info.word,
                       cell.name, cellKindInfo(cell.kind).word, cellKindInfo(needed).word);
      else if (isFeed(cell))
        checkOneLoads(where, in);
  }

  void checkOneLoads(const Scope &where, const Segment::Boundary &in) {
    auto loads = std::ranges::count(where.segment.ops, OpKind::BatchLoad, &Op::kind);
    if (loads > 1)
      where.addValue(finding::TakesTwoSeries, where.opOf(in.value), in.value);
    for (const Segment &other : role_.segments)
      if (&other < &where.segment &&
          std::ranges::count(other.ins, in.cell, &Segment::Boundary::cell) > 0 &&
          !share(other, where.segment))
        where.addValue(finding::FeedOfTwo, where.opOf(in.value), in.value,
                       role_.cells[in.cell].name);
  }

  bool share(const Segment &a, const Segment &b) const {
    auto indexOf = [&](const Segment &segment) {
      return static_cast<uint32_t>(&segment - role_.segments.data());
    };
    return shareMicrobatches(role_, indexOf(a), indexOf(b));
  }

  bool isRun(uint32_t segment) const {
    return hasNode(role_.program, [&](const ProgramNode &node) {
      return node.kind == ProgramNode::Run && node.segment == segment;
    });
  }

  Indices indices_;
};

} // namespace

void checkHostCells(Inspection &inspection, uint32_t role) { HostCheck(inspection, role).run(); }

} // namespace shardc::plan::verifier
