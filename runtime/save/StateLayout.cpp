#include "runtime/save/StateLayout.h"

#include <algorithm>
#include <optional>

#include "runtime/base/Reports.h"
#include "runtime/exec/Mesh.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/StateShare.h"

namespace shardc::save {
namespace {

/// What one rank saves of a piece that all ranks hold: the rows that begin in its stretch of the
/// block, or all of a piece of a block that is too small to be shared.
std::optional<StatePiece> shareOf(const plan::Plan &plan, const StatePiece &piece,
                                  const exec::GroupIndices &indices) {
  const plan::Param &param = plan.params[piece.param];
  int16_t group = plan.blocks[static_cast<size_t>(param.block)].stateGroup;
  int64_t ranks = plan.groupSize(group), index = indices.of(group);
  plan::StateShare share = plan::stateShareOf(plan, param.block);
  if (!share.isShared())
    return piece.param % ranks == index ? std::optional(piece) : std::nullopt;
  int64_t row = param.rowSize();
  // The first row of the parameter that begins at an element of the block or after it.
  auto rowAt = [&](int64_t element) {
    int64_t inside = std::max<int64_t>(element - param.offset, 0);
    return std::clamp((inside + row - 1) / row, piece.rowBegin, piece.rowBegin + piece.rowCount);
  };
  int64_t begin = rowAt(share.step * index);
  int64_t end =
      index + 1 < ranks ? rowAt(share.step * (index + 1)) : piece.rowBegin + piece.rowCount;
  if (begin >= end)
    return std::nullopt;
  int64_t rowBytes = piece.bytes / piece.rowCount;
  StatePiece mine = piece;
  mine.byteBegin += (begin - piece.rowBegin) * rowBytes;
  mine.rowBegin = begin;
  mine.rowCount = end - begin;
  mine.bytes = mine.rowCount * rowBytes;
  return mine;
}

/// Ranks with the same index in the group that owns a block's state hold the same of it; the first
/// of them saves it.
bool isFirstWithIndex(const plan::Plan &plan, int group, int64_t rank) {
  std::vector<int64_t> coords = exec::meshCoords(plan, rank);
  if (group >= 0)
    for (uint16_t axis : plan.groups[group].axes)
      coords[axis] = 0;
  return std::ranges::count(coords, 0) == std::ssize(coords);
}

} // namespace

Result<StateLayout> StateLayout::create(const plan::Plan &plan) {
  if (plan.roles.size() != 1)
    return makeStatus(
        report::PlanCannotRun,
        fmt::format("the plan has {} roles; only the state of a plan with one role can be saved "
                    "and loaded",
                    plan.roles.size()));
  for (const plan::Param &param : plan.params)
    if (param.block < 0)
      return makeStatus(
          report::PlanCannotRun,
          fmt::format("parameter '{}' is in no block; only parameters in blocks can be saved and "
                      "loaded",
                      param.name));
  StateLayout layout(plan);
  for (size_t b = 0; b < plan.blocks.size(); ++b)
    RETURN_IF_ERROR(layout.addBlock(static_cast<int32_t>(b)));
  return layout;
}

Result<uint32_t> StateLayout::findCell(int32_t block, plan::CellKind kind) const {
  const plan::Role &role = plan_->roles[0];
  uint32_t c = plan::findCell(role, kind, block);
  if (c != plan::kNone && role.cells[c].type.numel() != plan_->blocks[block].stateShard)
    return makeStatus(report::PlanCannotRun,
                      fmt::format("cell @{} has {} elements, its block {}, a shard of its state {}",
                                  role.cells[c].name, role.cells[c].type.numel(),
                                  plan_->blocks[block].numel, plan_->blocks[block].stateShard));
  return c;
}

Status StateLayout::addBlock(int32_t block) {
  ASSIGN_OR_RETURN(uint32_t weight, findCell(block, plan::CellKind::Master));
  if (weight == plan::kNone) {
    ASSIGN_OR_RETURN(weight, findCell(block, plan::CellKind::Weight));
  }
  ASSIGN_OR_RETURN(uint32_t first, findCell(block, plan::CellKind::FirstMoment));
  ASSIGN_OR_RETURN(uint32_t second, findCell(block, plan::CellKind::SecondMoment));
  if (weight == plan::kNone)
    return makeStatus(report::PlanCannotRun, fmt::format("block '{}' has no cell with its weights",
                                                         plan_->blocks[block].name));
  if (first == plan::kNone && second != plan::kNone)
    return makeStatus(
        report::PlanCannotRun,
        fmt::format("block '{}' has a second moment but no first one", plan_->blocks[block].name));
  cells_.push_back({checkpoint::ParamPart::Weight, block, weight});
  if (second != plan::kNone) {
    cells_.push_back({checkpoint::ParamPart::ExpAvg, block, first});
    cells_.push_back({checkpoint::ParamPart::ExpAvgSq, block, second});
  } else if (first != plan::kNone) { // SGD's
    cells_.push_back({checkpoint::ParamPart::Momentum, block, first});
  }
  return Status::ok();
}

Result<StateLayout::Held> StateLayout::toSnapshot(uint32_t cell) const {
  for (const StateCell &state : cells_) {
    if (state.cell != cell)
      continue;
    const plan::Type &type = plan_->roles[0].cells[cell].type;
    int64_t size = dtypeBytes(type.dtype);
    plan::StateShare share;
    if (isReplicated(state))
      share = plan::stateShareOf(*plan_, state.block);
    return share.isShared()
               ? Held{share.step * size, share.window * size, plan_->blocks[state.block].stateGroup}
               : Held{0, type.bytes()};
  }
  return makeStatus(report::PlanCannotRun, fmt::format("cell @{} is not state that is saved",
                                                       plan_->roles[0].cells[cell].name));
}

bool StateLayout::isReplicated(const StateCell &cell) const {
  return plan_->roles[0].cells[cell.cell].type.numel() == plan_->blocks[cell.block].numel;
}

Status StateLayout::addPieces(const StateCell &cell, const exec::GroupIndices &indices,
                              std::vector<StatePiece> &pieces) const {
  const plan::Type &type = plan_->roles[0].cells[cell.cell].type;
  const plan::Block &block = plan_->blocks[cell.block];
  int64_t begin = exec::pieceBegin(block, type.numel(), indices);
  for (const exec::ParamPart &part : exec::paramParts(*plan_, cell.block, begin, type.numel())) {
    const plan::Param &param = plan_->params[part.param];
    int64_t row = param.rowSize(), count = part.end - part.begin;
    if (part.globalBegin % row != 0 || count % row != 0)
      return makeStatus(report::PlanCannotRun,
                        fmt::format("the shard from element {} of block '{}' on cuts '{}' inside "
                                    "a row",
                                    begin, block.name, param.name));
    pieces.push_back({cell.part, part.param, cell.cell, part.begin * dtypeBytes(type.dtype),
                      count * dtypeBytes(type.dtype), part.globalBegin / row, count / row});
  }
  return Status::ok();
}

Result<std::vector<StatePiece>> StateLayout::pieces(int64_t rank) const {
  std::vector<StatePiece> pieces;
  exec::GroupIndices indices(*plan_, rank);
  for (const StateCell &cell : cells_)
    RETURN_IF_ERROR(addPieces(cell, indices, pieces));
  return pieces;
}

Result<std::vector<StatePiece>> StateLayout::piecesToSave(int64_t rank) const {
  std::vector<StatePiece> pieces;
  exec::GroupIndices indices(*plan_, rank);
  for (const StateCell &cell : cells_) {
    std::vector<StatePiece> held;
    if (!isFirstWithIndex(*plan_, plan_->blocks[cell.block].stateGroup, rank))
      continue;
    RETURN_IF_ERROR(addPieces(cell, indices, held));
    for (const StatePiece &piece : held)
      if (std::optional<StatePiece> share =
              isReplicated(cell) ? shareOf(*plan_, piece, indices) : piece)
        pieces.push_back(*share);
  }
  return pieces;
}

std::vector<checkpoint::ParamRequest> StateLayout::requests() const {
  std::vector<checkpoint::ParamRequest> requests;
  for (const StateCell &cell : cells_)
    for (uint32_t p = 0; p < plan_->params.size(); ++p)
      if (plan_->params[p].block == cell.block)
        requests.push_back({plan_->params[p].name, cell.part, shapeOf(p), isGated(p)});
  return requests;
}

bool StateLayout::isGated(uint32_t param) const {
  return plan_->job.model.gatedLinearUnit && checkpoint::isGateable(plan_->params[param].name);
}

checkpoint::Shape StateLayout::shapeOf(uint32_t param) const {
  const plan::Type &type = plan_->params[param].type;
  return {type.shape.begin(), type.shape.begin() + type.rank};
}

int64_t StateLayout::bytes(bool withMoments) const {
  std::vector<int64_t> elements(plan_->blocks.size()); // of parameters, without padding
  for (const plan::Param &param : plan_->params)
    elements[static_cast<size_t>(param.block)] += param.type.numel();
  int64_t bytes = 0;
  for (const StateCell &cell : cells_)
    if (withMoments || cell.part == checkpoint::ParamPart::Weight)
      bytes += elements[static_cast<size_t>(cell.block)] *
               dtypeBytes(plan_->roles[0].cells[cell.cell].type.dtype);
  return bytes;
}

std::vector<uint32_t> StateLayout::cells() const {
  std::vector<uint32_t> cells;
  for (const StateCell &cell : cells_)
    cells.push_back(cell.cell);
  return cells;
}

} // namespace shardc::save
