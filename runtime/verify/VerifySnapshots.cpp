// Checks the copies of background segments to the host; some go through a staging buffer.
// Background segments must copy everything that a rank saves of each cell exactly once. They run
// one after the other, and the checkpoint writer takes the copies of each segment when it ends. So
// the segments must copy a cell's rows in order.
#include <algorithm>

#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

class SnapshotCheck : RoleCheck {
public:
  SnapshotCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), indices_(plan_, role_),
        blockOf_(inspection.saved(roleIndex).blocks), copiesOf_(role_.cells.size()) {}

  void run() {
    if (std::ranges::count(blockOf_, nullptr) == std::ssize(blockOf_))
      return; // this role saves no state
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      if (role_.segments[s].before != kNone)
        collect(s);
    for (uint32_t c = 0; c < role_.cells.size() && report_.size() == 0; ++c)
      if (blockOf_[c] != nullptr)
        checkCell(c);
    for (const MasterCells &halves : halvedMasters(role_))
      if (report_.size() == 0)
        checkHalves(halves.lower, halves.upper);
  }

private:
  /// Elements of a cell that an op copies.
  struct Copy {
    uint32_t segment, op;
    CellPart part;
    int64_t count;
  };

  /// The part's first element, at the role's first index.
  __int128 firstOf(const CellPart &part) const {
    return part.begin.offset +
           static_cast<__int128>(part.begin.coef) * indices_.of(part.begin.group).first;
  }

  void collect(uint32_t s) {
    Scope where = scope(s);
    if (!report_.spend(where.segment.values.size() + where.segment.ops.size()))
      return;
    std::vector<CellPart> parts = partsOfState(plan_, role_, where.segment);
    for (uint32_t i = 0; i < where.segment.ops.size(); ++i) {
      const Op &op = where.segment.ops[i];
      if (op.kind != OpKind::Snapshot && op.kind != OpKind::Stage)
        continue;
      ValueId copied = op.operands[0];
      const CellPart &part = parts[copied];
      if (part.cell == kNone || blockOf_[part.cell] == nullptr)
        where.addValue(finding::CopiesOther, i, copied);
      else if (op.kind == OpKind::Snapshot)
        copiesOf_[part.cell].push_back({s, i, part, where.value(copied).type.numel()});
    }
  }

  /// The part of the cell that a rank saves: all of it, or the rank's share if all ranks hold the
  /// same.
  StateShare heldOf(uint32_t c) {
    const Block &block = *blockOf_[c];
    StateShare share;
    if (block.stateShard == block.numel) {
      int64_t longest = 1;
      auto index = static_cast<int32_t>(blockOf_[c] - plan_.blocks.data());
      for (const Param *param : report_.paramsOf(index))
        longest = std::max(longest, param->rowSize());
      share = stateShareOf(block.numel, longest, plan_.groupSize(block.stateGroup));
    }
    return share.isShared() ? share : StateShare{0, block.stateShard};
  }

  void checkCell(uint32_t c) {
    std::vector<Copy> &copies = copiesOf_[c];
    std::ranges::stable_sort(
        copies, {}, [&](const Copy &copy) { return std::pair(copy.segment, firstOf(copy.part)); });
    StateShare held = heldOf(c);
    int64_t at = 0;
    for (const Copy &copy : copies) {
      Moving next{at, held.step, held.step == 0 ? int16_t{-1} : blockOf_[c]->stateGroup};
      if (!areSame(plan_, role_, copy.part.begin, next)) {
        report_.addAbout(finding::CopiesOtherElements, {roleIndex_, copy.segment, copy.op},
                         role_.cells[c].name, copy.count, copy.part.begin.offset,
                         copy.part.begin.coef, next.offset, next.coef);
        return;
      }
      at += copy.count;
    }
    bool isLeftOut = copies.empty() && !savesBlock(plan_, roleIndex_, role_.cells[c].of);
    if (at != held.length && !isLeftOut)
      report_.addAbout(finding::CopiesMissing, spotOfCell(report_, roleIndex_, c),
                       role_.cells[c].name, at, held.length);
  }

  /// The writer of a checkpoint joins the lower and upper halves of fp32 values, so each segment
  /// must copy the same number of both.
  void checkHalves(uint32_t lower, uint32_t upper) {
    auto countIn = [&](uint32_t cell, uint32_t s) {
      int64_t count = 0;
      for (const Copy &copy : copiesOf_[cell])
        count += copy.segment == s ? copy.count : 0;
      return count;
    };
    for (auto [own, other] : {std::pair(lower, upper), {upper, lower}})
      for (const Copy &copy : copiesOf_[own])
        if (int64_t count = countIn(own, copy.segment), others = countIn(other, copy.segment);
            count != others) {
          report_.addAbout(finding::CopiesApart, {roleIndex_, copy.segment, copy.op},
                           role_.cells[own].name, count, others, role_.cells[other].name);
          return;
        }
  }

  Indices indices_;
  const std::vector<const Block *> &blockOf_; ///< by cell, if a save reads its state
  std::vector<std::vector<Copy>> copiesOf_;   ///< by cell
};

} // namespace

void checkSnapshots(Inspection &inspection, uint32_t role) {
  const Plan &plan = inspection.plan();
  bool hasSome = std::ranges::any_of(plan.roles, [](const Role &each) {
    return std::ranges::any_of(each.segments, [](const Segment &s) { return s.before != kNone; });
  });
  if (!plan.blocks.empty() && hasSome)
    SnapshotCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
