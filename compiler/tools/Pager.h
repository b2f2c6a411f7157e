// Shows long output on a terminal through a pager.
#pragma once

#include <cstddef>
#include <string_view>

namespace shardc::tools {

/// Writes the text to standard output. If that is a terminal with fewer rows than the text has
/// lines, pipes it through the program that SHARDC_PAGER names, else PAGER, else `less`. Writes it
/// directly if that program does not exist, if the variable is empty or `cat`, or if TERM is unset
/// or `dumb`. Returns false on a write error; quitting the pager early is not an error.
bool showText(std::string_view text);

/// The width of the terminal; 0 if standard output is none, or does not know it.
size_t terminalColumns();

} // namespace shardc::tools
