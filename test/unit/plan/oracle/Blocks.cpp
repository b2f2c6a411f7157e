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

namespace {

/// Whether the op is of the optimizer that the block's class names. If the class names none, it
/// only matters whether the op is Muon's.
bool isUpdateOf(const Plan &plan, int32_t block, const Op &op) {
  auto index = static_cast<size_t>(plan.blocks[static_cast<size_t>(block)].paramClass);
  if (const std::optional<Optimizer> &own = plan.classes[index].optimizer)
    return optimizerInfo(*own).op == op.kind;
  std::optional<Optimizer> ofJob = optimizerOf(plan.job);
  return !ofJob || (*ofJob == Optimizer::Muon) == (op.kind == OpKind::Muon);
}

/// The number of ranks that share the rows or columns of the parameter's matrices.
int64_t ranksOfMatrix(const Plan &plan, const Param &param) {
  for (const Split &split : param.splits)
    if (split.dim + 2 >= param.type.rank)
      return plan.groupSize(split.group);
  return 1;
}

/// Follows a divided update back to the operand of its first step, which is returned in `x`.
/// Returns the smallest capacity for products among all steps; 0 if one of the ops is not a step of
/// these ranks.
int64_t roomOfSteps(const Plan &plan, const Segment &segment, const Op &update, uint32_t &x) {
  int64_t room = std::numeric_limits<int64_t>::max(), sums = room;
  for (int64_t n = update.getInt(AttrKey::ns_steps); n >= 0; --n) {
    auto makerOf = [&](uint32_t value) {
      uint32_t def = segment.values[value].def;
      return def == kNone ? nullptr : &segment.ops[def];
    };
    const Op *step = makerOf(x);
    if (!step || step->kind != OpKind::MuonStep)
      return 0;
    const Op *added = makerOf(step->operands[2]);
    const Op *own =
        added && added->kind == OpKind::AllReduce ? makerOf(added->operands[0]) : nullptr;
    if (!own || own->kind != OpKind::MuonSums || own->operands[0] != step->operands[0])
      return 0;
    const Block &block = plan.blocks[static_cast<size_t>(update.getInt(AttrKey::block))];
    bool isExperts = std::ranges::any_of(plan.params, [&](const Param &param) {
      return &plan.blocks[static_cast<size_t>(param.block)] == &block && param.isStacked();
    });
    int16_t tensor = groupOfKind(plan, isExperts ? GroupKind::ExpertTensor : GroupKind::Tensor);
    if (tensor < 0 || added->group != tensor || added->getBool(AttrKey::average) ||
        own->getInt(AttrKey::sum_ranks) != plan.groupSize(tensor))
      return 0;
    for (const Op *each : {step, own}) {
      for (AttrKey key : {AttrKey::block, AttrKey::products})
        if (each->getInt(key) != update.getInt(key))
          return 0;
      if (each->getInt(AttrKey::ns_step) != n || each->operands[1] != update.operands[2])
        return 0;
      room = std::min(room, each->getInt(AttrKey::largest_matrix));
    }
    if (step->getInt(AttrKey::ns_coefficients) != update.getInt(AttrKey::ns_coefficients))
      return 0;
    if (n > 0)
      sums = std::min(sums, segment.values[own->results[0]].type.numel());
    x = step->operands[0];
  }
  return std::min(room, sums);
}

/// The part of a block that a rank has for an update by Muon. `elements` is 0 if the updates are
/// not computed from the rank's own shard. `ranks` is 1 if other ranks with parts of the matrices
/// are missing.
struct AtHand {
  int64_t elements = 0;
  int64_t ranks = 1;
  int64_t room = 0; ///< most elements of a matrix or, with divided steps, of its square
  bool isDivided = false;
};
AtHand atHandOf(const Plan &plan, const Segment &segment, const Op &op) {
  const Block &block = plan.blocks[static_cast<size_t>(op.getInt(AttrKey::block))];
  if (op.operands.size() < 5)
    return {segment.values[op.operands[0]].type.numel(), 1, op.getInt(AttrKey::largest_matrix)};
  AtHand found;
  uint32_t taken = op.operands[4];
  found.isDivided = op.getBool(AttrKey::divided);
  found.room =
      found.isDivided ? roomOfSteps(plan, segment, op, taken) : op.getInt(AttrKey::largest_matrix);
  uint32_t at = segment.values[taken].def;
  std::vector<int16_t> groups; // groups of the gathers, the last gather first
  for (; at != kNone && segment.ops[at].kind == OpKind::AllGather;
       at = segment.values[segment.ops[at].operands[0]].def)
    groups.push_back(segment.ops[at].group);
  if (at == kNone || segment.ops[at].kind != OpKind::MuonUpdate)
    return {};
  const Op &made = segment.ops[at];
  for (size_t k = 0; k < 4; ++k)
    if (made.operands[k] != op.operands[k])
      return {};
  for (AttrKey key : {AttrKey::block, AttrKey::nesterov, AttrKey::decoupled})
    if (made.getInt(key) != op.getInt(key))
      return {};
  if (made.getFloat(AttrKey::momentum) != op.getFloat(AttrKey::momentum) ||
      made.getFloat(AttrKey::weight_decay) != op.getFloat(AttrKey::weight_decay))
    return {};
  found.elements = segment.values[made.results[0]].type.numel();
  bool isExperts = false, isSplit = false;
  for (const Param &param : plan.params)
    if (&plan.blocks[static_cast<size_t>(param.block)] == &block) {
      isExperts |= param.isStacked();
      isSplit |= ranksOfMatrix(plan, param) > 1;
    }
  int16_t tensor = groupOfKind(plan, isExperts ? GroupKind::ExpertTensor : GroupKind::Tensor);
  if (found.isDivided)
    found.ranks = isSplit ? plan.groupSize(tensor) : 0;
  else if (isSplit && !groups.empty() && groups.front() == tensor) {
    found.ranks = plan.groupSize(tensor);
    groups.erase(groups.begin());
  }
  if (!groups.empty() && groups.front() == block.stateGroup) {
    found.elements *= plan.groupSize(block.stateGroup);
    groups.erase(groups.begin());
  }
  int64_t parts = found.isDivided ? 1 : found.ranks;
  return groups.empty() && op.getInt(AttrKey::tensor_parts) == parts ? found : AtHand{};
}

/// What is wrong with a parameter that Muon updates in parts of `atHand.elements`; empty if nothing
/// is.
std::string findCutMatrix(const Param &param, const AtHand &atHand, int64_t ranks) {
  const int64_t part = atHand.elements, room = atHand.room;
  int64_t count = param.isStacked() ? param.type.shape[0] : 1;
  if (param.type.rank != (param.isStacked() ? 3 : 2))
    return fmt::format("'{}' is no matrix, and Muon updates it", param.name);
  int64_t numel = param.type.numel() / count;
  int64_t needed = numel * ranks;
  // The side that ranks do not divide; for undivided matrices the shorter side.
  if (atHand.isDivided) {
    int64_t rows = param.type.shape[param.type.rank - 2];
    int64_t columns = param.type.shape[param.type.rank - 1];
    int64_t side = param.turns.empty() ? std::min(rows, columns) : 0;
    for (const Split &split : param.splits)
      if (split.dim + 2 >= param.type.rank)
        side = split.dim + 1 == param.type.rank ? rows : columns;
    needed = side * side;
  }
  if (needed > room)
    return fmt::format("'{}' has matrices of {} elements, with room for {}", param.name, needed,
                       room);
  for (int64_t i = 0; i < count; ++i)
    if (int64_t first = param.offset + i * numel; first / part != (first + numel - 1) / part)
      return fmt::format("no rank has all of matrix {} of '{}'", i, param.name);
  return {};
}

std::string findCutMatrix(const Plan &plan, const Segment &segment, const Op &op,
                          const Param &param) {
  AtHand atHand = atHandOf(plan, segment, op);
  bool isJoined = plan.job.optimizer.muonTpMode != Job::MuonTpMode::Blockwise;
  int64_t needed = isJoined ? ranksOfMatrix(plan, param) : 1;
  if (atHand.elements == 0 || (needed > 1) != (atHand.ranks > 1 && needed > 1))
    return fmt::format("block {} takes updates of other ranks, or lacks them",
                       op.getInt(AttrKey::block));
  return findCutMatrix(param, atHand, needed);
}

} // namespace

std::string findCutMatrix(const Plan &plan) {
  for (const Role &role : plan.roles)
    for (const Segment &segment : role.segments)
      for (const Op &op : segment.ops) {
        if (!opInfo(op).isOptimizer())
          continue;
        auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
        bool isMuon = op.kind == OpKind::Muon;
        if (!isUpdateOf(plan, block, op))
          return fmt::format("block {} is not updated by the optimizer of its class", block);
        for (const Param &param : plan.params)
          if (isMuon && param.block == block)
            if (std::string found = findCutMatrix(plan, segment, op, param); !found.empty())
              return found;
      }
  return {};
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
