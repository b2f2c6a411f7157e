// Preconditions of passes beyond what the verifier checks. Plans from preceding passes always meet
// them; plans written by hand may not.
#pragma once

#include <optional>
#include <string>

#include "compiler/passes/Passes.h"

namespace shardc::passes {

/// What a verified plan lacks for the pass, worded to follow 'needs' in a message; nothing if the
/// pass accepts the plan.
std::optional<std::string> findNeeded(PassId id, const plan::Plan &plan);

// Each is defined in the file of its pass.

/// An op of a training body without a backward rule.
std::optional<std::string> findNeededByBackward(const plan::Plan &plan);
/// An 8-bit product without a weight among its factors, which delayed scaling needs.
std::optional<std::string> findNeededByQuantize(const plan::Plan &plan);

} // namespace shardc::passes
