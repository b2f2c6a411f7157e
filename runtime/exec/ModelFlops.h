// How much a model computes, by the convention that published figures use, and how much its device
// could: what tokens per second are turned into utilisation with.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Operations of one token, forward and backward: 6 for each weight that it is multiplied with (the
/// output layer once, the embedding's table not at all), and 6 for each position and channel of
/// attention, which counts the causal half.
double modelFlopsPerToken(const plan::Plan &plan);

/// What one rank's device can do of dense products in the plan's precision, in operations a second;
/// 0 where the plan does not say.
double peakFlops(const plan::Plan &plan);

} // namespace shardc::exec
