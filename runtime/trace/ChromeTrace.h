// Spans in the JSON form that Perfetto and chrome://tracing open: a process for each rank, a thread
// for each stream.
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/Span.h"

namespace shardc::trace {

/// Times in microseconds since the first span began.
std::string chromeTrace(const std::vector<Span> &spans);

} // namespace shardc::trace
