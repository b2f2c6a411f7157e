// Backward liveness analysis of cells over the program.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The cells that are live at the start and at the end of a segment, in any of its variants.
struct CellLiveness {
  std::vector<uint8_t> atStart, atEnd; ///< by cell
};

/// By segment: the liveness of the role's cells.
std::vector<CellLiveness> cellLiveness(const plan::Role &role);

} // namespace shardc::passes
