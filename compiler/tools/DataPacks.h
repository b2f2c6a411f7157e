// shardc data sft, pack and show: subcommands of `shardc data` for packs of rows.
#pragma once

#include "runtime/base/CommandLine.h"

namespace shardc::tools {

void addDataPacks(cli::Command &data, int &status);
void addDataReference(cli::Command &data, int &status);

} // namespace shardc::tools
