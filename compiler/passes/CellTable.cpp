// Adds cells, and drops cells that no segment uses any more.
#include "compiler/passes/CellTable.h"

#include <algorithm>
#include <numeric>

namespace shardc::passes {

namespace {

/// Cells of these two kinds stay even if no op of the role reads them: the host writes the stop
/// flag, and each rank takes part in the exchange of amax values.
bool isOfEveryRole(plan::CellKind kind) {
  return kind == plan::CellKind::Stop || kind == plan::CellKind::AmaxSeen;
}

} // namespace

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
    if (used[c] == 0 && !isOfEveryRole(role.cells[c].kind))
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

std::vector<const plan::Role *> firstRoles(const plan::Plan &plan) {
  std::vector<const plan::Role *> first(plan.blocks.size());
  for (size_t r = plan.roles.size(); r-- > 0;)
    for (const plan::Cell &cell : plan.roles[r].cells)
      if (cell.kind == plan::CellKind::Weight)
        first[static_cast<size_t>(cell.of)] = &plan.roles[r];
  return first;
}

int16_t groupOfSteps(plan::Plan &plan) {
  if (plan.groupSize(plan::groupOfKind(plan, plan::GroupKind::Data)) == plan.worldSize())
    return plan::groupOfKind(plan, plan::GroupKind::Data);
  auto all = std::ranges::find(plan.groups, plan.mesh.size(),
                               [](const plan::Group &group) { return group.axes.size(); });
  if (all != plan.groups.end())
    return static_cast<int16_t>(all - plan.groups.begin());
  std::vector<uint16_t> axes(plan.mesh.size());
  std::iota(axes.begin(), axes.end(), uint16_t{0});
  return plan::groupOf(plan, std::move(axes), "all");
}

plan::ValueId addResultInCell(plan::Segment &segment, const plan::Role &role, plan::Op &op,
                              std::string name, uint32_t cell) {
  const plan::Cell &of = role.cells[cell];
  op.results.push_back(plan::addValue(segment, std::move(name), of.type, of.purpose));
  segment.outs.push_back({op.results.back(), cell});
  return op.results.back();
}

namespace {

/// The op that writes the cell from which the segment reads `value`; none if several ops write it.
OpPlace soleProducerOf(const plan::Role &role, uint32_t segment, plan::ValueId value) {
  uint32_t cell = plan::kNone;
  for (const plan::Segment::Boundary &in : role.segments[segment].ins)
    if (in.value == value)
      cell = in.cell;
  OpPlace found;
  int fills = 0;
  for (uint32_t s = 0; s < role.segments.size() && cell != plan::kNone; ++s)
    for (const plan::Segment::Boundary &out : role.segments[s].outs)
      if (out.cell == cell) {
        found = {s, role.segments[s].values[out.value].def};
        ++fills;
      }
  return fills == 1 ? found : OpPlace{};
}

} // namespace

void replaceSquared(
    plan::Role &role,
    const std::function<std::vector<plan::ValueId>(OpPlace, int32_t, uint32_t)> &sumsOf) {
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (plan::Op &op : role.segments[s].ops) {
      if (op.kind != plan::OpKind::SumSquares)
        continue;
      std::vector<plan::ValueId> operands;
      std::vector<plan::ListedBlock> blocks;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        std::vector<plan::ValueId> sums;
        if (OpPlace producer = soleProducerOf(role, s, op.operands[k]); producer.op != plan::kNone)
          sums = sumsOf(producer, op.blocks[k].block, s);
        if (sums.empty())
          sums = {op.operands[k]};
        operands.insert(operands.end(), sums.begin(), sums.end());
        blocks.insert(blocks.end(), sums.size(), op.blocks[k]);
      }
      op.operands = std::move(operands);
      op.blocks = std::move(blocks);
    }
}

plan::ValueId addSquares(plan::Role &role, OpPlace op, const std::string &name, plan::CellOf kind,
                         uint32_t reader) {
  uint32_t cell = addCell(role, name, kind, plan::Type::of(DType::F64, {1}), plan::Arena::Work,
                          plan::Purpose::Step);
  plan::Segment &segment = role.segments[op.segment];
  addResultInCell(segment, role, segment.ops[op.op], name, cell);
  // Each reduction computes squares, but only those of the last microbatch are read.
  segment.outs.back().mayDrop = segment.ops[op.op].pred != plan::Pred::Last;
  plan::renumber(segment);
  return plan::addLiveIn(role.segments[reader], name, role, cell);
}

bool isInLast(const plan::Op &op) {
  return op.pred == plan::Pred::Always || op.pred == plan::Pred::Last;
}

int64_t ranksOf(const plan::Plan &plan, const plan::Role &role) {
  int64_t ranks = plan.worldSize();
  for (const plan::AxisRange &range : role.where)
    ranks = ranks / plan.mesh[range.axis].size * (range.end - range.begin);
  return ranks;
}

} // namespace shardc::passes
