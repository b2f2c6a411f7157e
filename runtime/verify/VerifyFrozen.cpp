// Checks blocks whose class is not trained: they have weights but no other state, and only the
// start of a run or a load writes the weights.
#include <algorithm>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

bool isFrozen(const Plan &plan, int64_t block) {
  return block >= 0 && !plan.classOf(blockAt(plan, static_cast<int32_t>(block))).isTrained;
}

/// Whether only trained blocks have cells of this kind.
bool isOfTraining(CellKind kind) {
  switch (kind) {
  case CellKind::Gradient:
  case CellKind::GradientShard:
  case CellKind::ReducedGradient:
  case CellKind::GradientSquares:
  case CellKind::Master:
  case CellKind::FirstMoment:
  case CellKind::SecondMoment:
    return true;
  default:
    return false;
  }
}

class FrozenCheck {
public:
  FrozenCheck(Inspection &report, uint32_t role)
      : report_(report), plan_(report.plan()), role_(plan_.roles[role]), roleIndex_(role) {}

  void run() {
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (const Cell &cell = role_.cells[c]; isOfTraining(cell.kind) && isFrozen(plan_, cell.of))
        report_.addAbout(finding::FrozenState, spotOfCell(report_, roleIndex_, c), cell.name,
                         cellKindInfo(cell.kind).word, nameOf(cell.of));
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      checkSegment(s);
  }

private:
  const std::string &nameOf(int64_t block) const {
    return blockAt(plan_, static_cast<int32_t>(block)).name;
  }
  bool isFrozenWeight(uint32_t cell) const {
    CellKind kind = role_.cells[cell].kind;
    return (kind == CellKind::Weight || kind == CellKind::WeightShard) &&
           isFrozen(plan_, role_.cells[cell].of);
  }

  void checkSegment(uint32_t s) {
    const Segment &segment = role_.segments[s];
    std::vector<int32_t> frozen(segment.values.size(), -1); // the block whose weights each value is
    for (const Segment::Boundary &in : segment.ins)
      if (isFrozenWeight(in.cell))
        frozen[in.value] = role_.cells[in.cell].of;
    for (uint32_t i = 0; i < segment.ops.size(); ++i)
      checkOp({roleIndex_, s, i}, segment.ops[i], frozen);
    if (segment.kind == SegmentKind::Init)
      return;
    for (const Segment::Boundary &out : segment.outs)
      if (uint32_t def = segment.values[out.value].def; isFrozenWeight(out.cell) && def != kNone)
        report_.add(finding::FrozenWritten, {roleIndex_, s, def}, nameOf(role_.cells[out.cell].of));
  }

  void checkOp(const Spot &at, const Op &op, const std::vector<int32_t> &frozen) {
    const OpInfo &info = opInfo(op);
    if (info.isOptimizer() && isFrozen(plan_, op.getInt(AttrKey::block)))
      report_.add(finding::FrozenUpdated, at, nameOf(op.getInt(AttrKey::block)));
    auto write = [&](ValueId value) {
      if (frozen[value] >= 0)
        report_.add(finding::FrozenWritten, at, nameOf(frozen[value]));
    };
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = inPlaceOperand(op, r); operand >= 0)
        write(op.operands[static_cast<size_t>(operand)]);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc)
        write(tie.value);
  }

  Inspection &report_;
  const Plan &plan_;
  const Role &role_;
  uint32_t roleIndex_;
};

} // namespace

void checkFrozen(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (std::ranges::all_of(plan.classes, &ParamClass::isTrained))
    return;
  for (uint32_t role = 0; role < plan.roles.size(); ++role)
    FrozenCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
