// shardc data tokenize, a subcommand of `shardc data`.
#pragma once

#include "runtime/base/CommandLine.h"

namespace shardc::tools {

/// Adds the subcommand; its callback stores the exit status in `status`, which must outlive
/// parsing.
void addDataTokenize(cli::Command &data, int &status);

} // namespace shardc::tools
