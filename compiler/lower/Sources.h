// The recipe texts of a configuration, which a plan contains.
#pragma once

#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "runtime/plan/Plan.h"

namespace shardc::lower {

/// The texts, from weakest to strongest. File names are relative to the common folder of all files,
/// so that the plan does not depend on its location and an `extends` still finds its base. Recipes
/// that are installed with the programs keep their names.
std::vector<plan::Source> sourcesOf(const config::Config &config, const SourceManager &sources);

} // namespace shardc::lower
