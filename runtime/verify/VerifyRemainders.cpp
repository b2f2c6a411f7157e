// Checks master weights that are stored in two cells: the weights in bf16, and remainders, which
// are the low 16 bits (runtime/base/Remainder.h). Each half is useless without the other. So one op
// must compute both halves and fill both cells, and ops that update the block must read both. Saves
// join the contents of the two cells.
#include <algorithm>

#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Indices of operands and results that are halves of a block's master weights; -1: none.
struct Halves {
  int lowerIn = -1, upperIn = -1, lowerOut = -1, upperOut = -1;
};

class RemainderCheck : RoleCheck {
public:
  RemainderCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), pairs_(halvedMasters(role_)) {}

  void run() {
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s) {
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i)
        if (opInfo(role_.segments[s].ops[i]).isOptimizer())
          checkUpdate(s, i);
      for (const MasterCells &pair : pairs_)
        for (const Segment::Boundary &out : role_.segments[s].outs)
          if (out.cell == pair.lower || out.cell == pair.upper)
            checkFilled(s, out, pair);
    }
  }

private:
  static Halves halvesOf(const Op &op) {
    if (op.kind == OpKind::AdamW && op.operands.size() > operandIndex<OpKind::AdamW>("weight"))
      return {static_cast<int>(operandIndex<OpKind::AdamW>("master")),
              static_cast<int>(operandIndex<OpKind::AdamW>("weight")),
              static_cast<int>(resultIndex<OpKind::AdamW>("master")),
              static_cast<int>(resultIndex<OpKind::AdamW>("weight"))};
    if (op.kind == OpKind::InitBlock &&
        op.results.size() > resultIndex<OpKind::InitBlock>("remainder"))
      return {-1, -1, static_cast<int>(resultIndex<OpKind::InitBlock>("remainder")),
              static_cast<int>(resultIndex<OpKind::InitBlock>("x"))};
    return {};
  }

  void checkUpdate(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    Halves halves = halvesOf(op);
    int32_t block = blockNamedBy(op);
    auto pair = std::ranges::find(
        pairs_, block, [&](const MasterCells &each) { return role_.cells[each.lower].of; });
    if (block < 0 || (pair == pairs_.end() && halves.lowerIn < 0))
      return;
    const std::string &name = blockAt(plan_, block).name;
    if (pair == pairs_.end()) {
      report_.add(finding::NoRemainders, {roleIndex_, s, i}, name);
      return;
    }
    int lower = static_cast<int>(operandIndex<OpKind::AdamW>("master")); // of all optimizers
    needTaken(s, i, lower, "remainders", pair->lower);
    if (halves.upperIn >= 0)
      needTaken(s, i, halves.upperIn, "weights", pair->upper);
    if (halves.lowerOut < 0)
      return; // without them, the rule on types refuses the op
    needLeft(s, i, halves.lowerOut, "remainders", pair->lower);
    needLeft(s, i, halves.upperOut, "weights", pair->upper);
  }

  static bool isOneOf(const std::vector<Segment::Boundary> &boundaries, ValueId value,
                      uint32_t cell) {
    return std::ranges::any_of(boundaries, [&](const Segment::Boundary &each) {
      return each.value == value && each.cell == cell;
    });
  }

  void needTaken(uint32_t s, uint32_t i, int operand, std::string_view what, uint32_t cell) {
    const Op &op = role_.segments[s].ops[i];
    ValueId taken = op.operands[static_cast<size_t>(operand)];
    if (!isOneOf(role_.segments[s].ins, taken, cell))
      scope(s).addValue(finding::HalfTaken, i, taken, what, blockAt(plan_, blockNamedBy(op)).name,
                        role_.cells[cell].name);
  }

  void needLeft(uint32_t s, uint32_t i, int result, std::string_view what, uint32_t cell) {
    const Op &op = role_.segments[s].ops[i];
    ValueId made = op.results[static_cast<size_t>(result)];
    if (op.pred != Pred::Always || !isOneOf(role_.segments[s].outs, made, cell))
      scope(s).addValue(finding::HalfNotLeft, i, made, what, blockAt(plan_, blockNamedBy(op)).name,
                        role_.cells[cell].name);
  }

  /// Checks a store to one of the two cells.
  void checkFilled(uint32_t s, const Segment::Boundary &out, const MasterCells &pair) {
    const Segment &segment = role_.segments[s];
    bool isLower = out.cell == pair.lower;
    const Value &value = segment.values[out.value];
    if (value.def == kNone && isOneOf(segment.ins, out.value, out.cell))
      return; // the segment passes on the cell's own content
    const Op *op = value.def == kNone ? nullptr : &segment.ops[value.def];
    Halves halves = op == nullptr ? Halves{} : halvesOf(*op);
    int own = isLower ? halves.lowerOut : halves.upperOut;
    if (own >= 0 && value.defResult == own && blockNamedBy(*op) == role_.cells[pair.lower].of) {
      needLeft(s, value.def, isLower ? halves.upperOut : halves.lowerOut,
               isLower ? "weights" : "remainders", isLower ? pair.upper : pair.lower);
      return;
    }
    report_.addAbout(finding::HalfLeft, {roleIndex_, s, value.def}, value.name,
                     role_.cells[out.cell].name, blockAt(plan_, role_.cells[pair.lower].of).name);
  }

  std::vector<MasterCells> pairs_;
};

} // namespace

void checkRemainders(Inspection &inspection, uint32_t role) {
  RemainderCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
