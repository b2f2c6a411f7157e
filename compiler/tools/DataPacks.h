// shardc data sft, pack and show: subcommands of `shardc data` for packs of rows.
#pragma once

#include "runtime/base/CommandLine.h"

namespace shardc::tools {

/// Each adds its subcommands; the callback stores the exit status in `status`, which must outlive
/// parsing.
void addDataPacks(cli::Command &data, int &status);
void addDataReference(cli::Command &data, int &status);

} // namespace shardc::tools
