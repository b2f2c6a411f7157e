// Measured rates of a configuration: reads the file of `cluster.rates` and compares it with the
// cluster that the recipe names.
#pragma once

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"

namespace shardc::config {

/// Puts the rates of the file into the configuration, whose adjustments are made. A file that
/// cannot be read, a faulty line, and rates of another device or above the device's peak are
/// errors; what predictions of this recipe miss in the file is a remark. Does nothing without the
/// option.
void readRates(SourceManager &sources, DiagEngine &diags, Config &config);

} // namespace shardc::config
