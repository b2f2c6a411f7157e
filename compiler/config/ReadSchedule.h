// Reads the file of `model.pipeline_schedule_csv`.
#pragma once

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/model/PassOrder.h"

namespace shardc::config {

/// The schedule of the file, which the configuration must have, for a step with this many
/// microbatches.
model::PassOrder passOrderOf(const Config &config, int64_t microbatches);

/// Stores the text of the file in the configuration, which must be adjusted already. Reports what
/// is wrong at its cell. Does nothing without the option.
void readSchedule(SourceManager &sources, DiagEngine &diags, Config &config);

} // namespace shardc::config
