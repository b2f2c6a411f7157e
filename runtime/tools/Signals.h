// SIGINT and SIGTERM ask for a clean end; a second one ends the process at once.
#pragma once

#include <atomic>

namespace shardc::tools {

/// Installs the handlers. The counter that is returned says how many requests there were.
const std::atomic<int> &watchSignals();

} // namespace shardc::tools
