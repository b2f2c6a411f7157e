// Preconditions of passes beyond what the verifier checks. Plans from preceding passes always meet
// them; hand-written plans may not.
#pragma once

#include <optional>
#include <string>

#include "compiler/passes/Passes.h"

namespace shardc::passes {

/// What a verified plan lacks for the pass, worded to follow 'needs' in a message; nothing if the
/// pass accepts the plan.
std::optional<std::string> findNeeded(PassId id, const plan::Plan &plan);

// Each of these functions is defined in the file of its pass.

/// Finds an op of a training body that has no backward rule.
std::optional<std::string> findNeededByBackward(const plan::Plan &plan);
/// Finds an 8-bit product without a weight among its operands. Delayed scaling needs one.
std::optional<std::string> findNeededByQuantize(const plan::Plan &plan);

} // namespace shardc::passes
