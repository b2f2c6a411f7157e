// The backends that this build of shardc-run has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/tools/BackendEntry.h"

namespace shardc::tools {

/// Names that --backend takes.
std::vector<std::string> backendNames();

/// Null where this program was built without it.
const BackendEntry *findBackend(std::string_view name);

/// What `--version` prints: the version with its commit, the backends, and the libraries.
std::string versionLines();

} // namespace shardc::tools
