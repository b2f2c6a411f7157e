// Where the content of a cell is still needed: backward liveness analysis over the program as a
// graph of segments and variants.
#pragma once

#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Which cells a segment needs, at its start and at its end (in any of its variants).
struct CellLiveness {
  std::vector<uint8_t> atStart, atEnd; ///< by cell
};

/// Liveness of the role's cells for each of its segments.
std::vector<CellLiveness> cellLiveness(const plan::Role &role);

} // namespace shardc::passes
