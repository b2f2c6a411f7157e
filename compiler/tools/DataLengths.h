// Counts the samples of a recipe's data, for options in units of epochs.
#pragma once

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Creates a function that opens the data in the same way as a run, and counts samples. It caches
/// results per data set, since a command may compile a recipe many times.
config::DataMeter makeDataMeter();

} // namespace shardc::tools
