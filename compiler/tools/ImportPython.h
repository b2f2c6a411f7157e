// Runs a Python program that builds a Megatron-Bridge configuration, with stand-ins for the
// packages that it imports.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "compiler/tools/Session.h"
#include "compiler/upstream/Import.h"

namespace shardc::tools {

/// The configuration that the program builds, as YAML. `input` is FILE or FILE:FUNCTION. Prints
/// what it runs first; nothing after an error, which is reported.
std::optional<BufferId> runBridgePython(const std::string &input,
                                        const std::vector<std::string> &arguments,
                                        const upstream::ImportOptions &options, Session &session);

} // namespace shardc::tools
