// Runs a launch script with stand-ins for torchrun, srun and similar launchers, and imports the
// command that it starts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/tools/Session.h"
#include "compiler/upstream/Import.h"

namespace shardc::tools {

/// Command-line options for running the script.
struct ScriptRun {
  bool isAsked = false;          ///< `--run` was given
  bool isUnconfined = false;     ///< without a sandbox
  std::vector<std::string> with; ///< files to place next to the script
  int64_t nodes = 0;             ///< of the simulated cluster; 0: not given
  int64_t gpusPerNode = 0;
  std::string gpu;
};

/// The texts of files, and of all files in folders, by their places beside the script: by name, and
/// where their paths from its folder, or from this one, say.
Result<std::map<std::string, std::string>> readGiven(const std::vector<std::string> &with,
                                                     const std::string &script);

/// The formatted recipe. Empty after an error. Prints what it will run.
std::optional<std::string> importRun(const std::string &path, BufferId script, const ScriptRun &run,
                                     const upstream::ImportOptions &options, Session &session);

} // namespace shardc::tools
