// Writes spans in the JSON format of Perfetto and chrome://tracing: a process for each rank, a
// thread for each stream.
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/Span.h"

namespace shardc::trace {

/// Times in microseconds since the first span began.
std::string chromeTrace(const std::vector<Span> &spans);

} // namespace shardc::trace
