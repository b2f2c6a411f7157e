#include "Blocks.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "Contract.h"
#include "Facts.h"
#include "Positions.h"
#include "runtime/plan/Optimizers.h"

namespace shardc::plan::oracle {

std::vector<HalfCells> halvesOf(const Role &role) {
  std::vector<HalfCells> halves;
  for (uint32_t lower = 0; lower < role.cells.size(); ++lower) {
    const Cell &cell = role.cells[lower];
    if (cell.kind != CellKind::Master || cell.type.dtype != DType::U16)
      continue;
    uint32_t found = kNone;
    for (uint32_t c = 0; c < role.cells.size(); ++c)
      if (const Cell &other = role.cells[c]; other.of == cell.of)
        if (other.kind == CellKind::WeightShard ||
            (other.kind == CellKind::Weight && found == kNone))
          found = c;
    if (found != kNone && role.cells[found].type.dtype == DType::BF16 &&
        role.cells[found].type.shape == cell.type.shape)
      halves.push_back({lower, found, cell.of});
  }
  return halves;
}

bool isTrainedBlock(const Plan &plan, int32_t block) {
  auto index = static_cast<size_t>(plan.blocks[static_cast<size_t>(block)].paramClass);
  return plan.classes[index].isTrained;
}

bool hasTypeOfState(const Plan &plan, const Role &role, const Cell &cell) {
  std::vector<HalfCells> all = halvesOf(role);
  bool isMoment = cell.kind == CellKind::FirstMoment || cell.kind == CellKind::SecondMoment;
  bool isFrozen = blockOf(cell) >= 0 && !isTrainedBlock(plan, blockOf(cell));
  bool isNarrow = cell.type.dtype == DType::BF16 || cell.type.dtype == DType::F16;
  return cell.type.dtype == DType::F32 || ((isMoment || isFrozen) && isNarrow) ||
         std::ranges::any_of(all, [&](const HalfCells &halves) {
           return &role.cells[halves.lower] == &cell || &role.cells[halves.upper] == &cell;
         });
}

bool isSaved(const Role &role, const Cell &cell) {
  for (const HalfCells &halves : halvesOf(role))
    if (&role.cells[halves.upper] == &cell)
      return true;
  switch (cell.kind) {
  case CellKind::Step:
  case CellKind::AmaxHistory:
  case CellKind::ExpertBias:
  case CellKind::Master:
  case CellKind::FirstMoment:
  case CellKind::SecondMoment:
    return true;
  case CellKind::Weight:
    return std::ranges::none_of(role.cells, [&](const Cell &other) {
      return other.kind == CellKind::Master && other.of == cell.of;
    });
  default:
    return false;
  }
}

int32_t blockOf(const Cell &cell) {
  return cell.kind == CellKind::Param || cell.kind == CellKind::ParamGradient ? -1 : cell.of;
}

std::vector<int64_t> ranksWith(const Plan &plan, int32_t block) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
    const Role &role = plan.roles[roleOf(plan, rank)];
    if (std::ranges::any_of(role.cells, [&](const Cell &cell) {
          return isSaved(role, cell) && blockOf(cell) == block;
        }))
      ranks.push_back(rank);
  }
  return ranks;
}

} // namespace shardc::plan::oracle
