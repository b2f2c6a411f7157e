#include "runtime/exec/SaveSnapshot.h"

#include <map>

#include "runtime/plan/Printer.h"

namespace shardc::exec {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;

/// The bytes of a cell that a value is, through views of it.
Result<SnapshotCopy> sourceOf(const plan::Plan &plan, const Segment &segment, plan::ValueId value) {
  SnapshotCopy copy;
  copy.bytes = segment.values[value].type.bytes();
  while (segment.values[value].def != plan::kNone) {
    const Op &op = segment.ops[segment.values[value].def];
    if (op.kind != OpKind::View)
      return makeStatus(StatusCode::InvalidInput,
                        "'{}: {}' makes what is copied; it is not a part of a cell", segment.name,
                        plan::opLabel(plan, segment, op));
    int64_t size = dtypeBytes(segment.values[value].type.dtype);
    copy.byteBegin += op.getInt(plan::AttrKey::offset) * size;
    copy.byteStep += op.getInt(plan::AttrKey::coef_dp) * size;
    value = op.operands[0];
  }
  for (const Segment::Boundary &in : segment.ins)
    if (in.value == value)
      copy.cell = in.cell;
  return copy;
}

} // namespace

Result<std::vector<SnapshotPiece>> snapshotPieces(const plan::Plan &plan,
                                                  const StateLayout &layout) {
  std::vector<SnapshotPiece> pieces;
  const plan::Role &role = plan.roles[0];
  std::map<uint32_t, int64_t> covered; ///< bytes by cell
  for (uint32_t s = 0; s < role.segments.size(); ++s) {
    const Segment &segment = role.segments[s];
    if (segment.before == plan::kNone)
      continue;
    SnapshotPiece &piece = pieces.emplace_back();
    piece.segment = s;
    for (const Op &op : segment.ops) {
      if (op.kind != OpKind::Snapshot)
        continue;
      ASSIGN_OR_RETURN(SnapshotCopy copy, sourceOf(plan, segment, op.operands[0]));
      copy.place = segment.values[op.results[0]].place;
      ASSIGN_OR_RETURN(StateLayout::Held held, layout.toSnapshot(copy.cell));
      if (copy.byteBegin != covered[copy.cell] || copy.byteStep != held.step)
        return makeStatus(StatusCode::InvalidInput,
                          "'{}: {}' copies cell @{} from byte {} + {}*dp on; {} bytes from {}*dp "
                          "on are copied before",
                          segment.name, plan::opLabel(plan, segment, op),
                          role.cells[copy.cell].name, copy.byteBegin, copy.byteStep,
                          covered[copy.cell], held.step);
      covered[copy.cell] += copy.bytes;
      piece.copies.push_back(copy);
    }
  }
  if (pieces.empty())
    return pieces;
  for (uint32_t cell : layout.cells()) {
    ASSIGN_OR_RETURN(StateLayout::Held held, layout.toSnapshot(cell));
    if (covered[cell] != held.bytes)
      return makeStatus(StatusCode::InvalidInput,
                        "background segments copy {} of the {} bytes of cell @{} that a rank saves",
                        covered[cell], held.bytes, role.cells[cell].name);
  }
  return pieces;
}

} // namespace shardc::exec
