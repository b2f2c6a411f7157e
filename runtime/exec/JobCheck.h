// Compares the sizes that a plan's program consumes with those of the job in the plan, for which
// the data are opened.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Every difference in batches, microbatches, steps and evaluations, one sentence each.
std::vector<std::string> checkJob(const plan::Plan &plan);

} // namespace shardc::exec
