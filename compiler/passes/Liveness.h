// Backward liveness analysis of cells over the program, as a graph of segments and variants.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Which cells are live at the start and at the end of a segment, in any of its variants.
struct CellLiveness {
  std::vector<uint8_t> atStart, atEnd; ///< by cell
};

/// Liveness of the role's cells for each of its segments.
std::vector<CellLiveness> cellLiveness(const plan::Role &role);

} // namespace shardc::passes
