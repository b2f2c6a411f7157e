// The options of recipes as data for a page: options with non-default values, with their origin and
// reason, and options that differ between recipes.
#pragma once

#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "compiler/page/PlanData.h"

namespace shardc::page {

/// Options with non-default values, as a list of: path, value, default, origin in words, the rule's
/// reason if a rule set it, and the documentation.
Json optionsData(const config::Config &config, const SourceManager &sources);

/// The options whose values differ between the configurations, each with all values in the order of
/// `configs`.
Json differingOptions(const std::vector<config::Config> &configs);
/// The job settings whose values differ between the plans, each with all values in the order of
/// `plans`.
Json differingJobs(const std::vector<const plan::Plan *> &plans);

} // namespace shardc::page
