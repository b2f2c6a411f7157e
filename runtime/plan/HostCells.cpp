#include "runtime/plan/HostCells.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace shardc::plan {
namespace {

constexpr HostCellInfo kHostCells[] = {
#define HOST_CELL(enumerator, name, arena, use, doc) {name, Arena::arena, HostCellInfo::use},
#define STATE_CELL(enumerator, prefix, doc)
#include "runtime/plan/HostCells.def"
};

enum class StateCell : uint8_t {
#define HOST_CELL(enumerator, name, arena, use, doc)
#define STATE_CELL(enumerator, prefix, doc) enumerator,
#include "runtime/plan/HostCells.def"
};

constexpr std::string_view kPrefixes[] = {
#define HOST_CELL(enumerator, name, arena, use, doc)
#define STATE_CELL(enumerator, prefix, doc) prefix,
#include "runtime/plan/HostCells.def"
};

std::optional<StateCell> parsePrefix(std::string_view name) {
  for (size_t i = 0; i < std::size(kPrefixes); ++i)
    if (name.starts_with(kPrefixes[i]))
      return static_cast<StateCell>(i);
  return std::nullopt;
}

} // namespace

const HostCellInfo &hostCellInfo(HostCell cell) { return kHostCells[static_cast<size_t>(cell)]; }

std::optional<HostCell> parseHostCell(std::string_view name) {
  const auto *found = std::ranges::find(kHostCells, name, &HostCellInfo::name);
  if (found == std::end(kHostCells))
    return std::nullopt;
  return static_cast<HostCell>(found - std::begin(kHostCells));
}

bool isWrittenByHost(const Cell &cell) {
  std::optional<HostCell> found = parseHostCell(cell.name);
  return found && hostCellInfo(*found).use == HostCellInfo::Written;
}

std::vector<const Block *> blocksInCheckpoint(const Plan &plan, const Role &role) {
  struct Held {
    const Block *block;
    uint32_t weight = kNone, master = kNone;
  };
  std::unordered_map<std::string_view, Held> blocks(plan.blocks.size());
  for (const Block &block : plan.blocks)
    blocks.try_emplace(block.name, Held{&block});
  std::vector<const Block *> held(role.cells.size());
  for (uint32_t c = 0; c < role.cells.size(); ++c) {
    std::string_view name = role.cells[c].name;
    std::optional<StateCell> state = parsePrefix(name);
    if (!state)
      continue;
    auto at = blocks.find(name.substr(kPrefixes[static_cast<size_t>(*state)].size()));
    if (at == blocks.end())
      continue;
    if (*state != StateCell::Weight)
      held[c] = at->second.block;
    if (*state == StateCell::Weight)
      at->second.weight = c;
    else if (*state == StateCell::Master)
      at->second.master = c;
  }
  for (const auto &[name, of] : blocks)
    if (of.master == kNone && of.weight != kNone)
      held[of.weight] = of.block;
  return held;
}

std::vector<bool> cellsInCheckpoint(const Plan &plan, const Role &role) {
  return cellsInCheckpoint(role, blocksInCheckpoint(plan, role));
}

std::vector<bool> cellsInCheckpoint(const Role &role, const std::vector<const Block *> &blocks) {
  std::vector<bool> isHeld(role.cells.size());
  for (uint32_t c = 0; c < role.cells.size(); ++c)
    isHeld[c] = blocks[c] != nullptr || role.cells[c].name == hostCellInfo(HostCell::Step).name;
  return isHeld;
}

} // namespace shardc::plan
