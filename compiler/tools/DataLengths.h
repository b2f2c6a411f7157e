// Counts the samples of a recipe's data, for options in units of epochs.
#pragma once

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Opens the data as a run does. Results are cached by data, since a command may compile a recipe
/// many times.
config::DataMeter makeDataMeter();

} // namespace shardc::tools
