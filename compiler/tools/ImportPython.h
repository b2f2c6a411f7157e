// Imports programs that build a Megatron-Bridge configuration, by running them with stand-ins for
// the packages that they import or by reading their text; and launch scripts, by reading their
// text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "compiler/tools/Session.h"
#include "compiler/upstream/Import.h"

namespace shardc::tools {

/// The configuration that the program builds, as YAML. `input`: FILE or FILE:FUNCTION. Prints what
/// it will run. Empty after an error, which is reported.
std::optional<BufferId> runBridgePython(const std::string &input,
                                        const std::vector<std::string> &arguments,
                                        bool isUnconfined, const upstream::ImportOptions &options,
                                        Session &session);

/// The configuration in Python code or overrides, as YAML, as far as their text shows it. Empty
/// after an error, which is reported. Needs python3, which parses the text without running it.
std::optional<BufferId> readBridgePython(BufferId input, const upstream::ImportOptions &options,
                                         Session &session);

/// Like readBridgePython(), but returns the recipe of a launch script of the shell.
std::optional<std::string> readScript(BufferId input, const upstream::ImportOptions &options,
                                      Session &session);

} // namespace shardc::tools
