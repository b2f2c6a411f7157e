#include "runtime/save/SnapshotPieces.h"

#include <algorithm>
#include <map>

#include "runtime/base/Reports.h"
#include "runtime/plan/Printer.h"
#include "runtime/plan/StateShare.h"

namespace shardc::save {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;

/// What the segment copies, cells in the order of its ops, and of each cell by the place in it: all
/// of it is there when the segment has ended, in whichever order the parts are copied.
Result<std::vector<SnapshotCopy>> copiesOf(const plan::Plan &plan, const Segment &segment) {
  std::vector<SnapshotCopy> copies;
  std::vector<plan::CellPart> parts = plan::partsOfCells(plan, segment);
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
    if (plan.groupSize(part.begin.group) > 1) // the index is 0 otherwise
      begin.coef = part.begin.coef * size, begin.group = part.begin.group;
    copies.push_back({part.cell, begin, type.bytes(), segment.values[op.results[0]].place});
  }
  std::map<uint32_t, size_t> firstOf; // the first copy of each cell
  for (size_t i = 0; i < copies.size(); ++i)
    firstOf.try_emplace(copies[i].cell, i);
  std::ranges::sort(copies, {}, [&](const SnapshotCopy &copy) {
    return std::pair(firstOf.at(copy.cell), copy.byteBegin.offset);
  });
  return copies;
}

} // namespace

Result<std::vector<SnapshotPiece>> snapshotPieces(const plan::Plan &plan,
                                                  const StateLayout &layout) {
  std::vector<SnapshotPiece> pieces;
  if (plan.roles.size() > 1) // roles would have to begin and end their copies together
    return pieces;
  const plan::Role &role = plan.roles[0];
  std::map<uint32_t, int64_t> covered; ///< bytes by cell
  for (uint32_t s = 0; s < role.segments.size(); ++s) {
    const Segment &segment = role.segments[s];
    if (segment.before == plan::kNone)
      continue;
    SnapshotPiece &piece = pieces.emplace_back();
    piece.segment = s;
    ASSIGN_OR_RETURN(piece.copies, copiesOf(plan, segment));
    for (const SnapshotCopy &copy : piece.copies) {
      ASSIGN_OR_RETURN(StateLayout::Held held, layout.toSnapshot(copy.cell));
      if (copy.byteBegin != plan::Moving{covered[copy.cell], held.step, held.group})
        return makeStatus(report::PlanCannotRun,
                          "segment '{}' copies cell @{} from byte {} + {}*index on; {} bytes from "
                          "{}*index on are copied before",
                          segment.name, role.cells[copy.cell].name, copy.byteBegin.offset,
                          copy.byteBegin.coef, covered[copy.cell], held.step);
      covered[copy.cell] += copy.bytes;
    }
  }
  if (pieces.empty())
    return pieces;
  for (uint32_t cell : layout.cells()) {
    ASSIGN_OR_RETURN(StateLayout::Held held, layout.toSnapshot(cell));
    if (covered[cell] != held.bytes)
      return makeStatus(report::PlanCannotRun,
                        "background segments copy {} of the {} bytes of cell @{} that a rank saves",
                        covered[cell], held.bytes, role.cells[cell].name);
  }
  return pieces;
}

} // namespace shardc::save
