// Shows long output on a terminal through a pager.
#pragma once

#include <string_view>

namespace shardc::tools {

/// Writes to standard output. If that is a terminal with fewer rows than the text has lines, the
/// text goes through the program in SHARDC_PAGER, else PAGER, else `less`. It is written directly
/// if there is no pager, if the variable is empty or `cat`, or on a dumb terminal. Returns false on
/// a write error; leaving the pager early is not an error.
bool showText(std::string_view text);

} // namespace shardc::tools
