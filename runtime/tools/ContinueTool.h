// shardc-run --continue: lets a model continue a text, for `shardc generate`.
#pragma once

#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Continues the text of the options' settings and prints it token by token. The plan file has the
/// forward body of one row, and that of the prompt's rows if the prompt has several tokens. Returns
/// the exit status.
int continueText(const RunToolOptions &options);

} // namespace shardc::tools
