// Reads a trace that `shardc run --trace` wrote back into spans.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// Spans in the order of the file, and what the file calls the streams. InvalidInput with the
/// reason if the text has another form.
Result<std::vector<trace::Span>> readTrace(std::string_view text);

} // namespace shardc::page
