// What passes need of a plan beyond what the verifier proves. Plans that the passes before have
// made have all of it; plans that were written by hand may not.
#pragma once

#include <optional>
#include <string>

#include "compiler/passes/Passes.h"

namespace shardc::passes {

/// What the pass needs and a verified plan of its level lacks, as it follows the word 'needs' in a
/// message; none if the pass takes the plan.
std::optional<std::string> findNeeded(PassId id, const plan::Plan &plan);

// Each is in the file of its pass.

/// The op of a training body that has no backward rule.
std::optional<std::string> findNeededByBackward(const plan::Plan &plan);
/// The 8-bit product whose factor is no weight, where scales belong to weights.
std::optional<std::string> findNeededByQuantize(const plan::Plan &plan);

} // namespace shardc::passes
