// Reads a file written by `shardc run --trace`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// Parses the spans in the order of the file; streams keep the file's names. InvalidInput with a
/// reason if the text is not such a trace.
Result<std::vector<trace::Span>> readTrace(std::string_view text);

} // namespace shardc::page
