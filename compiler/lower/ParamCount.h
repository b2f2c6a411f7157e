// How many parameters a model has, from its configuration alone: also of models that no plan can be
// made of yet.
#pragma once

#include <cstdint>

#include "compiler/config/Config.h"

namespace shardc::lower {

/// Elements of all parameters on all ranks, rows of the padded vocabulary included, each tied
/// weight once. Equal to the sum over Plan::params where the configuration compiles.
int64_t countParameters(const config::Config &config);

} // namespace shardc::lower
