// Reads the file of `cluster.rates` and compares it with the cluster of the recipe.
#pragma once

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"

namespace shardc::config {

/// Stores the rates of the file in the configuration, which must be adjusted already. Reports an
/// error for an unreadable file, a malformed line, rates of another device, and rates above the
/// device's peak; and a remark for rates that predictions of this recipe need and the file lacks.
/// Does nothing without the option.
void readRates(SourceManager &sources, DiagEngine &diags, Config &config);

} // namespace shardc::config
