// The order of ops in which transfers inside of layers run beside compute.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Orders the ops of a body anew: compute takes what is ready, by predicted times, while what it
/// would take next waits for a transfer.
void orderBesideTransfers(const plan::Plan &plan, plan::Segment &segment);

} // namespace shardc::passes
