// Which cells hold something that is needed, where: the program as a graph of segments and
// variants, and the usual backward flow over it.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// What a segment needs of each cell: at its start, at its end (in any of its variants).
struct CellLiveness {
  std::vector<uint8_t> atStart, atEnd; ///< by cell
};

/// Liveness of the role's cells for each of its segments.
std::vector<CellLiveness> cellLiveness(const plan::Role &role);

} // namespace shardc::passes
