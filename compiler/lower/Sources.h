// The texts that a configuration was read from, as a plan carries them.
#pragma once

#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "runtime/plan/Plan.h"

namespace shardc::lower {

/// From the weakest to the strongest. Files are named from the folder that all of them share, so
/// that the plan is the same wherever that lies, and an `extends` finds its base again. Recipes
/// that come with the programs keep their names.
std::vector<plan::Source> sourcesOf(const config::Config &config, const SourceManager &sources);

} // namespace shardc::lower
