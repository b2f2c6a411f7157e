// The cells that the host writes or reads: the only names on which plan and runtime agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

enum class HostCell : uint8_t {
#define HOST_CELL(enumerator, name, arena, use, doc) enumerator,
#define STATE_CELL(enumerator, prefix, doc)
#include "runtime/plan/HostCells.def"
};

struct HostCellInfo {
  std::string_view name;
  Arena arena;
  enum Use : uint8_t { Written, Read } use; ///< by the host
};
const HostCellInfo &hostCellInfo(HostCell cell);
std::optional<HostCell> parseHostCell(std::string_view name);

/// True for a cell that only the host writes.
bool isWrittenByHost(const Cell &cell);

/// For each cell of the role, whether a checkpoint holds its content: the step state, and of each
/// block the weights that the optimizer has and the moments.
std::vector<bool> cellsInCheckpoint(const Plan &plan, const Role &role);
/// For each cell of the role the block of whose state a checkpoint holds it; null for other cells,
/// and for the step state.
std::vector<const Block *> blocksInCheckpoint(const Plan &plan, const Role &role);
/// The first from the second.
std::vector<bool> cellsInCheckpoint(const Role &role, const std::vector<const Block *> &blocks);

} // namespace shardc::plan
