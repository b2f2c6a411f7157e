// Orders ops by predicted times, so that compute runs other ops while data is transferred.
#pragma once

#include <cstddef>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Lets transfers inside layers begin as early, and be waited for as late, as possible.
void orderTransfers(const plan::Plan &plan, plan::Segment &segment);
/// Interleaves the first `second` ops with the others, each of which keep their order.
void interleave(const plan::Plan &plan, plan::Segment &segment, size_t second);

} // namespace shardc::passes
