// The recipe texts that a configuration was read from, which a plan carries.
#pragma once

#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "runtime/plan/Plan.h"

namespace shardc::lower {

/// From the weakest to the strongest. File names are relative to the folder that all of them share,
/// so that the plan does not depend on its location, and an `extends` still finds its base. Recipes
/// that are installed with the programs keep their names.
std::vector<plan::Source> sourcesOf(const config::Config &config, const SourceManager &sources);

} // namespace shardc::lower
