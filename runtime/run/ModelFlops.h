// The operations of a model, by the convention of published figures, and the peak of its device;
// together they turn tokens per second into utilisation.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::run {

/// Operations of one token, forward and backward: 6 for each weight that it is multiplied with (the
/// output layer once for each token that is predicted, the embedding's table not at all, of experts
/// those that it goes to), and 6 for each position and channel of attention, of which the causal
/// half counts.
double modelFlopsPerToken(const plan::Plan &plan);

/// Peak of one rank's device for dense products in the plan's precision, in operations per second;
/// 0 if the plan does not say.
double peakFlops(const plan::Plan &plan);

} // namespace shardc::run
