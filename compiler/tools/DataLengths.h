// Counts the samples of a recipe's data, for options in units of epochs.
#pragma once

#include <optional>
#include <string>

#include "compiler/config/Steps.h"

namespace shardc::tools {

/// Creates a function that opens the data in the same way as a run, and counts samples. It caches
/// results per data set, since a command may compile a recipe many times.
config::DataMeter makeDataMeter();

/// The first of some usual splits by which the recipe's data have samples for training and for
/// validation; "100,0,0" if only training has some, and nullopt if the data cannot be opened here.
std::optional<std::string> splitThatFits(const config::Config &config);

} // namespace shardc::tools
