// Runs a program that makes a configuration of Megatron-Bridge, with a stand-in for the packages
// that it imports.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "compiler/tools/Session.h"
#include "compiler/upstream/Import.h"

namespace shardc::tools {

/// The configuration as YAML that the program makes. `input` is FILE or FILE:FUNCTION. Prints what
/// is run before it runs; nothing after an error, which is reported.
std::optional<BufferId> runBridgePython(const std::string &input,
                                        const std::vector<std::string> &arguments,
                                        const upstream::ImportOptions &options, Session &session);

} // namespace shardc::tools
