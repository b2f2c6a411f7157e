// Writes spans in the JSON format of Perfetto and chrome://tracing: with a process for each rank
// and a thread for each stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/trace/Span.h"

namespace shardc::trace {

/// Returns the trace. Times are in microseconds since the first span began. `nameOf` returns a
/// rank's name; if it is empty, the names are like "rank 3".
std::string chromeTrace(const std::vector<Span> &spans,
                        const std::function<std::string(int rank)> &nameOf = nullptr);

} // namespace shardc::trace
