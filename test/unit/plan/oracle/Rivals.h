// Ops whose order decides what bytes hold.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Pairs of ops on different streams that write to the same bytes, on the rank of that index in the
/// group among whose ranks state is divided. Of two that have no order, each is run just behind the
/// other one, before anybody reads what that has written.
std::vector<std::pair<uint32_t, uint32_t>> rivalsIn(const Segment &segment, int64_t index);

} // namespace shardc::plan::oracle
