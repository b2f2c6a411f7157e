// Programs that build a Megatron-Bridge configuration: run with stand-ins for the packages that
// they import, or read; and launch scripts, which are read.
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

/// The recipe of what Python or overrides set, as far as their text shows it; nothing after an
/// error, which is reported. Needs python3, which reads the text and does not run it.
std::optional<std::string> readBridgePython(BufferId input, const upstream::ImportOptions &options,
                                            Session &session);

/// The same of a launch script of the shell.
std::optional<std::string> readScript(BufferId input, const upstream::ImportOptions &options,
                                      Session &session);

} // namespace shardc::tools
