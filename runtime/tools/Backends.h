// The backends that this build of shardc-run has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/tools/BackendEntry.h"

namespace shardc::tools {

/// Returns the names that --backend accepts.
std::vector<std::string> backendNames();

/// Returns the backend with this name; null if this program was built without it.
const BackendEntry *findBackend(std::string_view name);

/// Returns the wanted backend, or if none is named the first one with devices, otherwise the host
/// backend. Sets `devices` to the number of its devices on this machine.
const BackendEntry *chooseBackend(const std::string &wanted, int &devices);

/// Returns the output of `--version`: the version with its commit, the backends, and the libraries.
std::string versionLines();

} // namespace shardc::tools
