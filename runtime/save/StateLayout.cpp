// Builds the list of pieces: a piece is a box of one tensor in one cell of one rank.
#include "runtime/save/StateLayout.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/save/BaseWeights.h"
#include "runtime/save/RunProgress.h"

namespace shardc::save {
namespace {

/// The piece that one rank saves of a part that all ranks hold: the rows that begin in its range of
/// the block. If the block is too small to be divided, one rank saves everything.
std::optional<exec::ParamPiece> shareOf(const plan::Plan &plan, const exec::ParamPiece &part,
                                        const exec::GroupIndices &indices) {
  const plan::Param &param = plan.params[part.param];
  int16_t group = plan.blocks[static_cast<size_t>(param.block)].stateGroup;
  int64_t ranks = plan.groupSize(group), index = indices.of(group);
  plan::StateShare share = plan::stateShareOf(plan, param.block);
  if (!share.isShared())
    return part.param % ranks == index ? std::optional(part) : std::nullopt;
  int64_t row = param.rowSize(), count = part.end - part.begin;
  // The first row of the parameter that begins at or after an element of the block.
  auto rowAt = [&](int64_t element) {
    int64_t inside = std::max<int64_t>(element - param.offset, 0);
    return std::clamp((inside + row - 1) / row * row, part.globalBegin, part.globalBegin + count);
  };
  int64_t begin = rowAt(share.step * index);
  int64_t end = index + 1 < ranks ? rowAt(share.step * (index + 1)) : part.globalBegin + count;
  if (begin >= end)
    return std::nullopt;
  exec::ParamPiece mine = part;
  mine.begin += begin - part.globalBegin;
  mine.end = mine.begin + end - begin;
  mine.globalBegin = begin;
  return mine;
}

/// For each mesh axis, whether ranks that differ along it hold different elements of the parameter,
/// or divide its saving.
std::vector<bool> axesOfParts(const plan::Plan &plan, const plan::Param &param) {
  std::vector<bool> axes(plan.mesh.size());
  auto add = [&](int16_t group) {
    if (group >= 0)
      for (uint16_t axis : plan.groups[static_cast<size_t>(group)].axes)
        axes[axis] = true;
  };
  add(plan.blocks[static_cast<size_t>(param.block)].stateGroup);
  for (const plan::Split &split : param.splits)
    add(split.group);
  return axes;
}

/// The first rank of a role that has these coordinates on the given axes; nothing if it has none.
std::optional<std::vector<int64_t>> firstOf(const plan::Plan &plan, const plan::Role &role,
                                            const std::vector<int64_t> &coords,
                                            const std::vector<bool> &axes) {
  std::vector<int64_t> first(plan.mesh.size(), 0);
  std::vector<int64_t> ends;
  for (const plan::MeshAxis &axis : plan.mesh)
    ends.push_back(axis.size);
  for (const plan::AxisRange &range : role.where)
    first[range.axis] = range.begin, ends[range.axis] = range.end;
  for (size_t axis = 0; axis < first.size(); ++axis)
    if (axes[axis]) {
      if (coords[axis] < first[axis] || coords[axis] >= ends[axis])
        return std::nullopt;
      first[axis] = coords[axis];
    }
  return first;
}

} // namespace

Result<StateLayout> StateLayout::create(const plan::Plan &plan) {
  for (const plan::Param &param : plan.params)
    if (param.block < 0)
      return makeStatus(report::PlanCannotRun,
                        "parameter '{}' is in no block; only parameters in blocks can be saved and "
                        "loaded",
                        param.name);
  StateLayout layout(plan);
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    auto block = static_cast<int32_t>(b);
    bool isThere = false;
    for (uint32_t role = 0; role < plan.roles.size(); ++role) {
      RETURN_IF_ERROR(layout.addBlock(role, block));
      isThere = isThere || layout.hasBlock(role, block);
    }
    if (!isThere)
      return makeStatus(report::PlanCannotRun, "block '{}' has no cell with its weights",
                        plan.blocks[b].name);
  }
  return layout;
}

bool StateLayout::hasBlock(uint32_t role, int32_t block) const {
  return std::ranges::find(cells_[role], block, &StateCell::block) != cells_[role].end();
}

Result<uint32_t> StateLayout::findCell(uint32_t index, int32_t block, plan::CellKind kind) const {
  const plan::Role &role = plan_->roles[index];
  uint32_t c = plan::findCell(role, kind, block);
  if (c != plan::kNone && role.cells[c].type.numel() != plan_->blocks[block].stateShard)
    return makeStatus(report::PlanCannotRun,
                      "cell @{} has {} elements, its block {}, a shard of its state {}",
                      role.cells[c].name, role.cells[c].type.numel(), plan_->blocks[block].numel,
                      plan_->blocks[block].stateShard);
  return c;
}

/// Adds the role's cells of the block.
Status StateLayout::addBlock(uint32_t role, int32_t block) {
  ASSIGN_OR_RETURN(uint32_t weight, findCell(role, block, plan::CellKind::Master));
  if (weight == plan::kNone) {
    ASSIGN_OR_RETURN(weight, findCell(role, block, plan::CellKind::Weight));
  }
  if (weight == plan::kNone)
    return Status::ok();
  uint32_t upper = plan::upperHalfOf(plan_->roles[role], weight);
  if (plan::isRemainder(plan_->roles[role].cells[weight]) && upper == plan::kNone)
    return makeStatus(report::PlanCannotRun,
                      "cell @{} has remainders, and no cell has this rank's weights in bf16",
                      plan_->roles[role].cells[weight].name);
  cells_[role].push_back({checkpoint::ParamPart::Weight, block, weight, upper});
  return addMoments(role, block);
}

/// Adds the optimizer state of the block, with the names that checkpoints use.
Status StateLayout::addMoments(uint32_t role, int32_t block) {
  std::optional<plan::Optimizer> optimizer =
      plan::optimizerOf(*plan_, plan_->blocks[static_cast<size_t>(block)]);
  if (!optimizer)
    return Status::ok();
  const plan::OptimizerInfo &info = plan::optimizerInfo(*optimizer);
  std::string_view missing;
  size_t before = cells_[role].size();
  for (const plan::Moment &moment : info.moments) {
    ASSIGN_OR_RETURN(uint32_t cell, findCell(role, block, moment.cell));
    auto part = std::ranges::find(checkpoint::kParamParts, moment.name, checkpoint::momentName);
    if (cell == plan::kNone)
      missing = moment.name;
    else
      cells_[role].push_back({*part, block, cell});
  }
  if (!missing.empty() && cells_[role].size() > before)
    return makeStatus(report::PlanCannotRun, "block '{}' has no cell for '{}' of optimizer '{}'",
                      plan_->blocks[block].name, missing, info.word);
  return Status::ok();
}

/// If several ranks have the same state, each copies a share of it; otherwise the whole cell.
Result<StateLayout::Held> StateLayout::toSnapshot(uint32_t cell, uint32_t role) const {
  for (const StateCell &state : cells_[role]) {
    if (state.cell != cell && state.upper != cell)
      continue;
    const plan::Type &type = typeOf(role, state);
    int64_t size = dtypeBytes(type.dtype);
    plan::StateShare share;
    if (isReplicated(role, state))
      share = plan::stateShareOf(*plan_, state.block);
    return share.isShared()
               ? Held{share.step * size, share.length * size, plan_->blocks[state.block].stateGroup}
               : Held{0, type.bytes()};
  }
  return makeStatus(report::PlanCannotRun, "cell @{} is not state that is saved",
                    plan_->roles[role].cells[cell].name);
}

bool StateLayout::isReplicated(uint32_t role, const StateCell &cell) const {
  return typeOf(role, cell).numel() == plan_->blocks[cell.block].numel;
}

/// Whether the rank is the first one, among all roles, that holds the same part of the parameter.
bool StateLayout::isFirstWith(const plan::Param &param, int64_t rank) const {
  std::vector<bool> axes = axesOfParts(*plan_, param);
  std::vector<int64_t> coords = exec::meshCoords(*plan_, rank);
  for (uint32_t role = 0; role < plan_->roles.size(); ++role)
    if (hasBlock(role, param.block))
      if (auto first = firstOf(*plan_, plan_->roles[role], coords, axes); first && *first < coords)
        return false;
  return true;
}

Status StateLayout::addPieces(const StateCell &cell, const Holder &holder, bool isOnce,
                              std::vector<StatePiece> &pieces) const {
  const auto &[rank, role, indices] = holder;
  const plan::Type &type = typeOf(role, cell);
  const plan::Block &block = plan_->blocks[cell.block];
  int64_t begin = exec::pieceBegin(block, type.numel(), indices), size = dtypeBytes(type.dtype);
  for (exec::ParamPiece part : exec::paramPieces(*plan_, cell.block, begin, type.numel())) {
    const plan::Param &param = plan_->params[part.param];
    if (part.globalBegin % param.rowSize() != 0 || (part.end - part.begin) % param.rowSize() != 0)
      return makeStatus(report::PlanCannotRun,
                        "the shard from element {} of block '{}' on cuts '{}' inside a row", begin,
                        block.name, param.name);
    if (isOnce && !isFirstWith(param, rank))
      continue;
    if (isOnce && isReplicated(role, cell)) {
      std::optional<exec::ParamPiece> share = shareOf(*plan_, part, indices);
      if (!share)
        continue;
      part = *share;
    }
    for (const exec::TensorBox &box : exec::tensorBoxes(*plan_, part, indices)) {
      pieces.push_back({cell.part,
                        part.param,
                        cell.cell,
                        box.begin * size,
                        (box.end - box.begin) * size,
                        {{box.offset.begin(), box.offset.begin() + box.rank},
                         {box.shape.begin(), box.shape.begin() + box.rank}},
                        box.number,
                        role,
                        cell.upper});
      for (checkpoint::Shape *extents : {&pieces.back().box.offset, &pieces.back().box.shape})
        extents->back() *= numbersIn(type.dtype);
    }
  }
  return Status::ok();
}

Result<std::vector<StatePiece>> StateLayout::pieces(int64_t rank, bool isOnce, bool hasBase) const {
  std::vector<StatePiece> pieces;
  Holder holder{rank, exec::roleOf(*plan_, rank), exec::GroupIndices(*plan_, rank)};
  for (const StateCell &cell : cells_[holder.role])
    if (hasBase || !plan::isOfBase(*plan_, plan_->blocks[static_cast<size_t>(cell.block)]))
      RETURN_IF_ERROR(addPieces(cell, holder, isOnce, pieces));
  return pieces;
}

Result<std::vector<StatePiece>> StateLayout::pieces(int64_t rank) const {
  return pieces(rank, /*isOnce=*/false, /*hasBase=*/true);
}

Result<std::vector<StatePiece>> StateLayout::piecesToSave(int64_t rank) const {
  return pieces(rank, /*isOnce=*/true, /*hasBase=*/false);
}

Result<std::vector<StatePiece>> StateLayout::weightsOnce(int64_t rank) const {
  ASSIGN_OR_RETURN(std::vector<StatePiece> all, pieces(rank, /*isOnce=*/true, /*hasBase=*/true));
  std::erase_if(
      all, [](const StatePiece &piece) { return piece.part != checkpoint::ParamPart::Weight; });
  return all;
}

std::vector<checkpoint::ParamRequest> StateLayout::requests() const {
  std::vector<checkpoint::ParamRequest> requests;
  std::set<std::pair<int32_t, checkpoint::ParamPart>> seen; // roles may have the same blocks
  for (const std::vector<StateCell> &cells : cells_)
    for (const StateCell &cell : cells) {
      if (!seen.emplace(cell.block, cell.part).second)
        continue;
      for (uint32_t p = 0; p < plan_->params.size(); ++p)
        for (int64_t i = 0;
             plan_->params[p].block == cell.block && i < plan_->params[p].tensorCount(); ++i)
          requests.push_back({plan_->params[p].tensorName(i), cell.part, shapeOf(p), isGated(p)});
    }
  for (const ExpertBuffer &buffer : expertBuffersOf(*plan_))
    requests.push_back({buffer.name, checkpoint::ParamPart::Weight, {buffer.experts}, false});
  return requests;
}

std::string StateLayout::nameOf(const StatePiece &piece) const {
  return plan_->params[piece.param].tensorName(piece.number);
}

const plan::Cell &StateLayout::cellOf(const StatePiece &piece) const {
  return plan_->roles[piece.role].cells[piece.cell];
}

bool StateLayout::isGated(uint32_t param) const {
  return plan_->job.model.gatedLinearUnit &&
         checkpoint::isGateable(plan_->params[param].tensorName(0));
}

checkpoint::Shape StateLayout::shapeOf(uint32_t param) const {
  plan::Type type = plan_->params[param].tensorType();
  return {type.shape.begin(), type.shape.begin() + type.rank};
}

int64_t StateLayout::bytes(bool withMoments) const {
  std::vector<int64_t> elements(plan_->blocks.size()); // elements of tensors, without padding
  for (const plan::Param &param : plan_->params)
    if (!isKeptInBase(*plan_, param)) // saves omit the base of adapters
      elements[static_cast<size_t>(param.block)] += param.wholeType().numel();
  int64_t bytes = 0;
  std::set<std::pair<int32_t, checkpoint::ParamPart>> seen; // roles may have the same blocks
  for (uint32_t role = 0; role < cells_.size(); ++role)
    for (const StateCell &cell : cells_[role])
      if ((withMoments || cell.part == checkpoint::ParamPart::Weight) &&
          seen.emplace(cell.block, cell.part).second)
        bytes += elements[static_cast<size_t>(cell.block)] * dtypeBytes(typeOf(role, cell).dtype) *
                 (cell.upper == plan::kNone ? 1 : 2);
  return bytes;
}

std::vector<uint32_t> StateLayout::cells(uint32_t role) const {
  std::vector<uint32_t> cells;
  for (const StateCell &cell : cells_[role]) {
    cells.push_back(cell.cell);
    if (cell.upper != plan::kNone)
      cells.push_back(cell.upper);
  }
  return cells;
}

} // namespace shardc::save
