// Pairs of ops where the op that ends last determines the content of some bytes.
#pragma once

#include <utility>
#include <vector>

#include "Positions.h"

namespace shardc::plan::oracle {

/// Pairs of ops on different streams that write to the same bytes. If two have no order, the oracle
/// runs each one right after the other, before any op reads the result.
std::vector<std::pair<uint32_t, uint32_t>> rivalsIn(const Segment &segment,
                                                    const Positions &positions, int64_t rank);

} // namespace shardc::plan::oracle
