// Writes spans in the JSON format of Perfetto and chrome://tracing: a process for each rank, a
// thread for each stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/trace/Span.h"

namespace shardc::trace {

/// Times in microseconds since the first span began. `nameOf` is what to call a rank; "rank 3"
/// without it.
std::string chromeTrace(const std::vector<Span> &spans,
                        const std::function<std::string(int rank)> &nameOf = nullptr);

} // namespace shardc::trace
