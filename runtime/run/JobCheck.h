// Compares the sizes that a plan's program consumes with those of the job in the plan, for which
// the data are opened.
#pragma once

#include <vector>

#include "runtime/base/Report.h"
#include "runtime/plan/Plan.h"

namespace shardc::run {

/// Every difference in batches, microbatches, steps and evaluations.
std::vector<Report> checkJob(const plan::Plan &plan);

} // namespace shardc::run
