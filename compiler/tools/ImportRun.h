// Runs a launch script with stand-ins for its launchers, and imports what it started.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/tools/Session.h"
#include "compiler/upstream/Import.h"

namespace shardc::tools {

/// What the command line says about a run, besides the import's options.
struct ScriptRun {
  bool isAsked = false;
  std::vector<std::string> with; ///< paths of files that the script finds beside itself
  int64_t nodes = 0;             ///< of the cluster that questions are answered for; 0: not given
  int64_t gpusPerNode = 0;
  std::string gpu;
};

/// The formatted recipe, or nothing after an error. Prints what it runs before it does.
std::optional<std::string> importRun(const std::string &path, BufferId script, const ScriptRun &run,
                                     const upstream::ImportOptions &options, Session &session);

} // namespace shardc::tools
