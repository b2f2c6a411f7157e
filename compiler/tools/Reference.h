// Generates parts of reference pages from tables whose folders have no generator: each function, or
// each text of its list, makes what is between two marks. compiler/config/Explain.h has the
// generators for options and rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardc::tools {

/// docs/diagnostics.md: every message of the compiler's own code, and of the plan's verifier.
std::vector<std::string> diagnosticReference();

/// docs/messages.md: every message of the runtime.
std::vector<std::string> messageReference();

/// docs/ops.md: every op with operands, results and effects; tables of facts; every attribute.
std::vector<std::string> opReference();

/// docs/kinds.md: every kind of cells, units, groups, streams, segments and products, and the
/// phases of ops.
std::vector<std::string> kindReference();

/// docs/passes.md: every pass in the pipeline's order.
std::vector<std::string> passReference();

/// docs/devices.md: every device with its rates and their source; the ops whose rates are assumed;
/// the kinds of measured rates.
std::vector<std::string> deviceReference();

/// docs/coming-from-others.md: names in other programs, and what to write instead.
std::vector<std::string> foreignReference();

/// docs/job.md: every field of a plan's job table.
std::vector<std::string> jobReference();

/// The tables of launchers' variables, a part of docs/environment.md.
std::vector<std::string> launcherReference();

} // namespace shardc::tools
