// Reference pages of the tables that no folder of their own describes: messages, ops, passes.
// Options and rules have theirs in compiler/config/Explain.h.
#pragma once

#include <string>

namespace shardc::tools {

/// docs/diagnostics.md: every message of the compiler's own code and of the plan's verifier.
std::string diagnosticReference();

/// docs/ops.md: every op with operands, results, effects, its attributes and their meaning.
std::string opReference();

/// docs/passes.md: every pass in the pipeline's order.
std::string passReference();

} // namespace shardc::tools
