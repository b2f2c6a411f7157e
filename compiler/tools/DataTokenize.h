// shardc data tokenize, a subcommand of `shardc data`.
#pragma once

#include "runtime/base/CommandLine.h"

namespace shardc::tools {

void addDataTokenize(cli::Command &data, int &status);

} // namespace shardc::tools
