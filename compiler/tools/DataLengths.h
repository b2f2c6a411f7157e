// Counts the samples of the data that a recipe names, for options that count in passes over them.
#pragma once

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Opens the data as a run does. Counts the same data once, however many configurations name them:
/// a command may compile a recipe many times.
config::DataMeter makeDataMeter();

} // namespace shardc::tools
