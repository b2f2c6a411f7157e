// Finds what the host does with a cell, by the cell's kind, and which block a checkpoint stores for
// it.
#include "runtime/plan/HostCells.h"

#include "runtime/plan/Builder.h"

namespace shardc::plan {

bool isWrittenByHost(const Cell &cell) {
  return cellKindInfo(cell.kind).host == CellKindInfo::Writes;
}

bool isFeed(const Cell &cell) {
  return cell.kind == CellKind::Feed || cell.kind == CellKind::EvalFeed;
}

namespace {

int64_t bytesMadeBy(const Role &role, OpKind kind) {
  int64_t bytes = 0;
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops)
      if (op.kind == kind)
        bytes += segment.values[op.results[0]].type.bytes();
  return bytes;
}

} // namespace

int64_t snapshotBytes(const Role &role) { return bytesMadeBy(role, OpKind::Snapshot); }

int64_t stagedBytes(const Role &role) { return bytesMadeBy(role, OpKind::Stage); }

uint32_t upperHalfOf(const Role &role, uint32_t cell) {
  const Cell &lower = role.cells[cell];
  if (!isRemainder(lower))
    return kNone;
  for (CellKind kind : {CellKind::WeightShard, CellKind::Weight}) // a Weight may hold all
    if (uint32_t upper = findCell(role, kind, lower.of); upper != kNone)
      return role.cells[upper].type == Type::of(DType::BF16, {lower.type.numel()}) ? upper : kNone;
  return kNone;
}

std::vector<MasterCells> halvedMasters(const Role &role) {
  std::vector<MasterCells> halves;
  for (uint32_t c = 0; c < role.cells.size(); ++c)
    if (uint32_t upper = upperHalfOf(role, c); upper != kNone)
      halves.push_back({c, upper});
  return halves;
}

std::vector<const Block *> loadedBlocks(const Plan &plan, const Role &role) {
  std::vector<bool> hasMaster(plan.blocks.size());
  for (const Cell &cell : role.cells)
    if (cell.kind == CellKind::Master)
      hasMaster[static_cast<size_t>(cell.of)] = true;
  std::vector<const Block *> held(role.cells.size());
  auto hold = [&](size_t c) { held[c] = &plan.blocks[static_cast<size_t>(role.cells[c].of)]; };
  for (size_t c = 0; c < role.cells.size(); ++c) {
    const Cell &cell = role.cells[c];
    bool isOther = cell.kind == CellKind::WeightShard ||
                   (cell.kind == CellKind::Weight && hasMaster[static_cast<size_t>(cell.of)]);
    if (cellKindInfo(cell.kind).host == CellKindInfo::Saves && !isOther)
      hold(c);
  }
  for (const MasterCells &halves : halvedMasters(role))
    hold(halves.upper);
  return held;
}

bool isOfBase(const Plan &plan, const Block &block) {
  return plan.job.peft.scheme.has_value() && !plan.classOf(block).isTrained;
}

std::vector<const Block *> savedBlocks(const Plan &plan, const Role &role) {
  std::vector<const Block *> saved = loadedBlocks(plan, role);
  for (const Block *&block : saved)
    if (block != nullptr && isOfBase(plan, *block))
      block = nullptr;
  return saved;
}

bool isOfAdapter(const Param &param) { return param.name.find(".adapter.") != std::string::npos; }

std::optional<std::string> weightOfMagnitude(std::string_view name) {
  constexpr std::string_view kEnd = ".adapter.weight_magnitude";
  if (!name.ends_with(kEnd))
    return std::nullopt;
  return std::string(name.substr(0, name.size() - kEnd.size())) + ".weight";
}

std::vector<bool> cellsOfState(const Role &role, const std::vector<const Block *> &blocks) {
  std::vector<bool> isHeld(role.cells.size());
  bool hasScales = false; // 8-bit weights are state if no masters exist
  for (size_t c = 0; c < role.cells.size(); ++c)
    hasScales |= blocks[c] != nullptr && role.cells[c].kind == CellKind::Weight &&
                 role.cells[c].type.dtype == DType::F8E4M3;
  for (size_t c = 0; c < role.cells.size(); ++c)
    isHeld[c] =
        blocks[c] != nullptr || (hasScales && role.cells[c].kind == CellKind::WeightScales) ||
        role.cells[c].kind == CellKind::Step || role.cells[c].kind == CellKind::AmaxHistory ||
        role.cells[c].kind == CellKind::ExpertBias;
  return isHeld;
}

} // namespace shardc::plan
