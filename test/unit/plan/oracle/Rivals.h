// Ops of which the one that ends last decides what some bytes hold.
#pragma once

#include <utility>
#include <vector>

#include "Positions.h"

namespace shardc::plan::oracle {

/// Pairs of ops on different streams that write to the same bytes. Of two that have no order, each
/// is run just behind the other one, before anybody reads what that has written.
std::vector<std::pair<uint32_t, uint32_t>> rivalsIn(const Segment &segment,
                                                    const Positions &positions, int64_t rank);

} // namespace shardc::plan::oracle
