// Reads the copies from the ops of the plan, so that saves follow any plan that copies each cell
// exactly once.
#include "runtime/save/SnapshotPieces.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/base/Reports.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Text.h"

namespace shardc::save {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;

/// The segment's copies to the host, in the order of its ops.
Result<std::vector<SnapshotCopy>> copiesOf(const plan::Plan &plan, const plan::Role &role,
                                           const Segment &segment) {
  std::vector<SnapshotCopy> copies;
  std::vector<plan::CellPart> parts = plan::partsOfState(plan, role, segment);
  for (const Op &op : segment.ops) {
    if (op.kind != OpKind::Snapshot)
      continue;
    const plan::CellPart &part = parts[op.operands[0]];
    if (part.cell == plan::kNone)
      return makeStatus(report::PlanCannotRun,
                        "'{}: {}' copies what an op computes; it needs to copy a part of a cell",
                        segment.name, plan::opLabel(plan, segment, op));
    const plan::Type &type = segment.values[op.operands[0]].type;
    int64_t size = dtypeBytes(type.dtype);
    plan::Moving begin{part.begin.offset * size};
    if (plan.groupSize(part.begin.group) > 1) // otherwise the index is 0
      begin.coef = part.begin.coef * size, begin.group = part.begin.group;
    copies.push_back({part.cell, begin, type.bytes(), segment.values[op.results[0]].place});
  }
  return copies;
}

/// Sorts copies: first weights that have remainders, then other cells in the order of the first
/// segment, and within a cell by position. Since the last segment has ended by then, everything is
/// available, regardless of the order of copying.
void sort(std::vector<SnapshotCopy> &copies, const std::set<uint32_t> &uppers,
          const Segment &first) {
  std::map<uint32_t, size_t> at; // position of each cell in the segment
  for (size_t i = 0; i < first.ins.size(); ++i)
    at.try_emplace(first.ins[i].cell, i);
  std::ranges::sort(copies, {}, [&](const SnapshotCopy &copy) {
    return std::tuple(uppers.count(copy.cell) == 0, at.at(copy.cell), copy.byteBegin.offset);
  });
}

/// Checks that the background segments of a role copy each cell of its state from begin to end.
class Coverage {
public:
  Coverage(const plan::Plan &plan, const StateLayout &layout, uint32_t role)
      : plan_(plan), layout_(layout), roleIndex_(role), role_(plan.roles[role]),
        halves_(plan::halvedMasters(role_)) {}

  /// Adds the copies of one segment. Each must continue where the previous one of its cell ended.
  /// Both halves of master weights must have advanced equally at the end of each segment, since
  /// they are joined when they are written.
  Status add(std::string_view segment, const std::vector<SnapshotCopy> &copies) {
    for (const SnapshotCopy &copy : copies) {
      ASSIGN_OR_RETURN(StateLayout::Held held, layout_.toSnapshot(copy.cell, roleIndex_));
      int64_t &covered = covered_[copy.cell];
      if (copy.byteBegin != plan::Moving{covered, held.step, held.group})
        return makeStatus(report::PlanCannotRun,
                          "segment '{}' copies cell @{} from byte {} + {}*index on; {} bytes from "
                          "{}*index on are copied before",
                          segment, role_.cells[copy.cell].name, copy.byteBegin.offset,
                          copy.byteBegin.coef, covered, held.step);
      covered += copy.bytes;
    }
    for (auto [lower, upper] : halves_)
      if (covered_[lower] != covered_[upper])
        return makeStatus(report::PlanCannotRun,
                          "up to its end, segment '{}' and those before it copy {} bytes of cell "
                          "@{} and {} of cell @{}, which are saved together",
                          segment, covered_[lower], role_.cells[lower].name, covered_[upper],
                          role_.cells[upper].name);
    return Status::ok();
  }

  /// Checks that all cells are complete. Cells that another role saves may be omitted.
  Status finish() {
    for (uint32_t cell : layout_.cells(roleIndex_)) {
      int64_t covered = covered_[cell];
      ASSIGN_OR_RETURN(StateLayout::Held held, layout_.toSnapshot(cell, roleIndex_));
      bool isLeftOut = covered == 0 && !plan::savesBlock(plan_, roleIndex_, role_.cells[cell].of);
      if (covered != held.bytes && !isLeftOut)
        return makeStatus(
            report::PlanCannotRun,
            "background segments copy {} of the {} bytes of cell @{} that a rank saves", covered,
            held.bytes, role_.cells[cell].name);
    }
    return Status::ok();
  }

private:
  const plan::Plan &plan_;
  const StateLayout &layout_;
  uint32_t roleIndex_;
  const plan::Role &role_;
  std::vector<plan::MasterCells> halves_;
  std::map<uint32_t, int64_t> covered_; ///< bytes by cell
};

/// The copies of a role's background segments to the host, in order. A segment that stages on the
/// device is grouped with the segments that copy the staged data.
Result<std::vector<RoleSnapshot>> snapshotsOf(const plan::Plan &plan, uint32_t index,
                                              uint32_t firstNumber) {
  const plan::Role &role = plan.roles[index];
  std::vector<RoleSnapshot> snapshots;
  std::map<const Segment *, size_t> at; // indices in `snapshots`
  for (bool copiesOn : {false, true})
    for (uint32_t s = 0; s < role.segments.size(); ++s) {
      const Segment &segment = role.segments[s], *stage = plan::stagedBy(role, segment);
      if (segment.before == plan::kNone || (stage != nullptr) != copiesOn)
        continue;
      if (!copiesOn)
        at[&segment] = snapshots.size(), snapshots.push_back({{}, {}, index});
      RoleSnapshot &snapshot = snapshots[at.at(copiesOn ? stage : &segment)];
      ASSIGN_OR_RETURN(std::vector<SnapshotCopy> copies, copiesOf(plan, role, segment));
      snapshot.segments.push_back(firstNumber + s);
      snapshot.copies.insert(snapshot.copies.end(), copies.begin(), copies.end());
    }
  std::set<uint32_t> uppers;
  for (const plan::MasterCells &halves : plan::halvedMasters(role))
    uppers.insert(halves.upper);
  for (RoleSnapshot &snapshot : snapshots)
    sort(snapshot.copies, uppers, role.segments[snapshot.segments.front() - firstNumber]);
  return snapshots;
}

} // namespace

Result<std::vector<SnapshotPiece>> snapshotPieces(const plan::Plan &plan,
                                                  const StateLayout &layout) {
  std::vector<SnapshotPiece> pieces;
  std::vector<Coverage> coverage;
  uint32_t number = 0;
  for (uint32_t r = 0; r < plan.roles.size(); ++r) {
    const plan::Role &role = plan.roles[r];
    Coverage &covered = coverage.emplace_back(plan, layout, r);
    ASSIGN_OR_RETURN(std::vector<RoleSnapshot> snapshots, snapshotsOf(plan, r, number));
    pieces.resize(std::max(pieces.size(), snapshots.size()));
    for (size_t i = 0; i < snapshots.size(); ++i) {
      RETURN_IF_ERROR(covered.add(role.segments[snapshots[i].segments.front() - number].name,
                                  snapshots[i].copies));
      pieces[i].roles.push_back(std::move(snapshots[i]));
    }
    number += static_cast<uint32_t>(role.segments.size());
  }
  for (size_t r = 0; r < coverage.size() && !pieces.empty(); ++r)
    RETURN_IF_ERROR(coverage[r].finish());
  return pieces;
}

} // namespace shardc::save
