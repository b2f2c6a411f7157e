// Settings of a recipe for a page: those that are not at their default, with origin and reason, and
// those in which recipes differ.
#pragma once

#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "compiler/page/PlanData.h"

namespace shardc::page {

/// A list: path, value, default, origin in words, the reason if a rule set it, and the doc.
Json optionsData(const config::Config &config, const SourceManager &sources);

/// A list of the options whose values differ among the configurations, with all values in order.
Json differingOptions(const std::vector<config::Config> &configs);
/// The same of what plans say of their job.
Json differingJobs(const std::vector<const plan::Plan *> &plans);

} // namespace shardc::page
