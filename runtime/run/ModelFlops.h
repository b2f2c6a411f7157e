// The FLOPs of a model by the convention of published figures, and the peak of its device. Together
// they convert tokens per second to utilisation.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::run {

/// Model FLOPs of one token, forward and backward: 6 per weight by which the token is multiplied,
/// and 6 per position and channel of attention, of which the causal half counts. The output layer
/// counts once per predicted token, embedding tables do not count, and experts count if the token
/// is routed to them.
double modelFlopsPerToken(const plan::Plan &plan);

/// Peak FLOP/s of one rank's device for dense products in the plan's precision; 0 if unknown.
double peakFlops(const plan::Plan &plan);

} // namespace shardc::run
