// SIGINT and SIGTERM request a clean end; a second one ends the process at once.
#pragma once

#include <atomic>

namespace shardc::tools {

/// Installs the handlers. The counter that is returned says how many requests there were. With
/// `isQuiet` a parent says what becomes of a request.
const std::atomic<int> &watchSignals(bool isQuiet = false);

/// That counter; zero before the handlers are installed.
const std::atomic<int> &stopRequests();

} // namespace shardc::tools
