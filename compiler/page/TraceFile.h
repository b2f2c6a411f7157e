// Reads a trace that `shardc run --trace` wrote back into spans.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// Parses spans, in the order of the file, with the file's names of streams. InvalidInput with the
/// reason if the text has another form.
Result<std::vector<trace::Span>> readTrace(std::string_view text);

} // namespace shardc::page
