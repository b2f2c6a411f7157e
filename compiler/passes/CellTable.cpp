#include "compiler/passes/CellTable.h"

namespace shardc::passes {

void dropUnusedCells(plan::Role &role) {
  std::vector<uint8_t> used(role.cells.size(), 0);
  for (const plan::Segment &segment : role.segments) {
    for (const plan::Segment::Boundary &in : segment.ins)
      used[in.cell] = 1;
    for (const plan::Segment::Boundary &out : segment.outs)
      used[out.cell] = 1;
  }
  std::vector<uint32_t> index(role.cells.size(), plan::kNone);
  std::vector<plan::Cell> cells;
  for (size_t c = 0; c < role.cells.size(); ++c) {
    // The host writes its flag from outside, so the flag stays even if no op reads it yet.
    if (used[c] == 0 && role.cells[c].arena != plan::Arena::Host)
      continue;
    index[c] = static_cast<uint32_t>(cells.size());
    cells.push_back(std::move(role.cells[c]));
  }
  role.cells = std::move(cells);
  for (plan::Segment &segment : role.segments) {
    for (plan::Segment::Boundary &in : segment.ins)
      in.cell = index[in.cell];
    for (plan::Segment::Boundary &out : segment.outs)
      out.cell = index[out.cell];
  }
}

uint32_t jobLoc(const plan::Plan &plan, int64_t loc) {
  return loc < 0 || loc >= static_cast<int64_t>(plan.locs.size()) ? plan::kNone
                                                                  : static_cast<uint32_t>(loc);
}

} // namespace shardc::passes
