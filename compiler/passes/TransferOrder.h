// Orders ops so that transfers inside layers overlap compute.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// List scheduling by predicted times: while the next compute op waits for a transfer, another
/// ready op runs.
void orderBesideTransfers(const plan::Plan &plan, plan::Segment &segment);

} // namespace shardc::passes
