// Writes spans in the JSON format of Perfetto and chrome://tracing: a process for each rank, a
// thread for each stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/trace/Span.h"

namespace shardc::trace {

/// Times are in microseconds since the first span began. `nameOf` returns a rank's name; "rank 3"
/// without it.
std::string chromeTrace(const std::vector<Span> &spans,
                        const std::function<std::string(int rank)> &nameOf = nullptr);

} // namespace shardc::trace
