// Long output on a terminal goes through a pager, as people know it from other tools.
#pragma once

#include <string_view>

namespace shardc::tools {

/// Writes to standard output. If that is a terminal with fewer rows than the text has lines,
/// through the program that SHARDC_PAGER names, else PAGER, else `less`; without one of them, if
/// the variable is empty or `cat`, or on a dumb terminal, as it is. False if not all could be
/// written; a reader who leaves the pager early has seen enough.
bool showText(std::string_view text);

} // namespace shardc::tools
