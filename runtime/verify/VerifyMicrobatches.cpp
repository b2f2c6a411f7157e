// Checks to which microbatch each value of a segment belongs. A value in a ring belongs to the
// microbatch of its slot, an op's result to the microbatch of its operands, and a received value to
// the microbatch of the cell to which it is stored. All operands of an op must belong to the same
// microbatch.
#include <algorithm>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {
namespace {

class MicrobatchCheck {
public:
  explicit MicrobatchCheck(const Scope &scope)
      : scope_(scope), segment_(scope.segment), rings_(scope.inspection.ringsOf(scope.roleIndex)),
        shifts_(segment_.values.size(), kOfNone), wanted_(segment_.values.size(), kOfNone) {}

  std::vector<int64_t> run() {
    for (const Segment::Boundary &in : segment_.ins)
      if (rings_.isSlot(in.cell))
        shifts_[in.value] = in.shift;
    for (const Segment::Boundary &out : segment_.outs)
      if (rings_.isSlot(out.cell))
        wanted_[out.value] = out.shift;
    passOnWanted();
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      follow(i);
    for (const Segment::Boundary &out : segment_.outs)
      checkOut(out);
    return std::move(shifts_);
  }

private:
  /// If a receive takes no effect, its slot gets the value of its 'else' tie. If that value comes
  /// from another receive, and no op reads it, it belongs to the microbatch of the slot.
  void passOnWanted() {
    std::vector<uint8_t> isRead(segment_.values.size());
    for (const Op &op : segment_.ops)
      for (ValueId operand : op.operands)
        isRead[operand] = 1;
    for (size_t i = segment_.ops.size(); i-- > 0;) {
      const Op &op = segment_.ops[i];
      if (op.kind != OpKind::Recv || wanted_[op.results[0]] == kOfNone)
        continue;
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Else && isReceived(tie.value) && isRead[tie.value] == 0 &&
            wanted_[tie.value] == kOfNone)
          wanted_[tie.value] = wanted_[op.results[0]];
    }
  }

  bool isReceived(ValueId value) const {
    uint32_t def = segment_.values[value].def;
    return def != kNone && segment_.ops[def].kind == OpKind::Recv;
  }

  void follow(uint32_t i) {
    const Op &op = segment_.ops[i];
    int64_t shift = op.kind == OpKind::Recv || op.kind == OpKind::BatchLoad ? 0 : kOfNone;
    if (op.kind == OpKind::Recv && wanted_[op.results[0]] != kOfNone)
      shift = wanted_[op.results[0]];
    for (ValueId operand : op.operands) {
      int64_t other = shifts_[operand];
      if (other == kOfNone || other == shift)
        continue;
      if (shift != kOfNone)
        scope_.addValue(finding::MicrobatchesMixed, i, operand, other, shift);
      shift = other;
    }
    for (ValueId result : op.results)
      shifts_[result] = shift;
    // An 'else' tie passes its value on unchanged, so this value may be of another microbatch.
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Else)
        continue;
      else if (int64_t tied = shifts_[tie.value];
               tied != kOfNone && shift != kOfNone && tied != shift)
        scope_.addValue(finding::TieOfOtherMicrobatch, i, tie.value, tied, shift);
  }

  void checkOut(const Segment::Boundary &out) {
    int64_t shift = shifts_[out.value];
    if (!rings_.isSlot(out.cell) || shift == kOfNone || shift == out.shift)
      return;
    scope_.addValue(finding::LeftForOtherMicrobatch, scope_.opOf(out.value), out.value, shift,
                    out.shift);
  }

  const Scope &scope_;
  const Segment &segment_;
  const RoleRings &rings_;
  std::vector<int64_t> shifts_; ///< of each value
  /// For each value: the microbatch of the slot to which it is stored.
  std::vector<int64_t> wanted_;
};

bool hasTransfers(const Segment &segment) {
  return std::ranges::any_of(segment.ops, [](const Op &op) { return isPointToPoint(op); });
}

} // namespace

const RoleRings &Inspection::ringsOf(uint32_t role) const {
  static const RoleRings kNoRings;
  return rings_ == nullptr ? kNoRings : (*rings_)[role];
}

const std::vector<int64_t> &Inspection::shiftsOf(uint32_t role, uint32_t segment) {
  auto [at, isNew] = shifts_.try_emplace({role, segment});
  const Role &of = plan_.roles[role];
  if (isNew && (ringsOf(role).hasRings() || hasTransfers(of.segments[segment])))
    at->second = MicrobatchCheck(Scope{*this, of, of.segments[segment], role, segment}).run();
  return at->second;
}

int64_t Inspection::shiftOf(uint32_t role, uint32_t segment, ValueId value) {
  const std::vector<int64_t> &shifts = shiftsOf(role, segment);
  return shifts.empty() || shifts[value] == kOfNone ? 0 : shifts[value];
}

void checkMicrobatches(const Scope &scope) {
  scope.inspection.shiftsOf(scope.roleIndex, scope.segmentIndex);
}

} // namespace shardc::plan::verifier
